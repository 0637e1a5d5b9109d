"""The rules of the sources: imports go downwards, objects change their own state.

`make check` runs this file; its name keeps it out of `make test`, which can run without sources.

The rules are in `tests/layering`, by subject, each with its planted violations:

- `imports`: what a part may import, cycles, imports inside functions, the one door to a sink;
- `later`: what loads on first access is declared in plain sight;
- `reach`: assignments to another object, private attributes, `getattr` with a literal name;
- `waits`: clean-ups that wait for a client of a server;
- `white_boxes`: tests that import private modules say it; the only rule of the tests.

What needs the package itself, and not its text, is tested here: the wheel owns one name and a
second one that only points into the first, since Spark looks for data sources in modules named
`pyspark_*`; a bare import loads no client; the public names are those of `tests/surface.txt`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.layering import imports, later, reach, waits, white_boxes
from tests.layering.sources import PACKAGE, SOURCE, Rule, edges, sources
from tests.layering.sources import imports as imports_of
from tests.surface import surface

RULES = [*imports.RULES, *later.RULES, *reach.RULES, *waits.RULES]
PLANTED = [*imports.PLANTED, *later.PLANTED, *reach.PLANTED, *waits.PLANTED, *white_boxes.PLANTED]
HARMLESS = [
    *imports.HARMLESS,
    *later.HARMLESS,
    *reach.HARMLESS,
    *waits.HARMLESS,
    *white_boxes.HARMLESS,
]

SIGNPOSTS = {"pyspark_sluicegate": {"sluicegate.spark.source"}}
"""Top-level modules besides the package, and the one module of the package that each may import."""

CLIENTS = [
    "aiokafka", "asyncpg", "confluent_kafka", "httpx", "hypothesis", "jinja2", "msgspec", "nats", "numpy", "opentelemetry", "pandas", "prometheus_client",
    "psutil", "pyarrow", "pyspark", "pytest", "redis", "rich", "sqlalchemy", "sqlglot", "starlette", "uvicorn",
]  # fmt: skip


def loaded_by(statement: str, *suspects: str) -> list[str]:
    """Those of `suspects` that a new interpreter has loaded after `statement`."""
    program = (
        f"{statement}\nimport sys\nprint(*sorted({{n.split('.')[0] for n in "
        f"sys.modules}} & {set(suspects)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def named(value: object) -> str:
    return getattr(value, "__name__", "")


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_the_sources_keep_every_rule(rule: Rule) -> None:
    known = sources()
    assert len(known) > 20, "the sources were not found"
    assert rule(known) == []


def test_tests_of_private_code_say_so() -> None:
    known = white_boxes.sources_of_tests()
    assert len(known) > 20, "the tests were not found"
    assert white_boxes.white_boxes_say_so(known) == []


def test_every_listed_deferral_is_still_made() -> None:
    known = sources()
    made = {(found.source, found.target(known)) for found in edges(known) if found.is_deferred}
    assert set(imports.DEFERRED) <= made


def test_the_wheel_owns_one_name_and_signposts_to_it() -> None:
    """Each is one file that imports nothing else and defines nothing of its own."""
    root = SOURCE.parent
    shipped = {f"src/{PACKAGE}", *(f"src/{name}" for name in SIGNPOSTS)}
    assert {
        f"src/{path.name}"
        for path in root.iterdir()
        if path.is_dir() and path.name != "__pycache__"
    } == shipped
    with (root.parent / "pyproject.toml").open("rb") as file:
        assert (
            set(tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
            == shipped
        )
    known = sources()
    for name, targets in SIGNPOSTS.items():
        assert [path.name for path in (root / name).glob("*.py")] == ["__init__.py"]
        text = (root / name / "__init__.py").read_text(encoding="utf-8")
        assert {found.target(known) for found in imports_of(name, {**known, name: text})} == targets
        assert not [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        ]


def test_the_public_names_and_signatures_are_those_that_were_stored() -> None:
    """After an intended change store the new list: `python tests/surface.py >
    tests/surface.txt`.
    """
    stored = (Path(__file__).parents[1] / "surface.txt").read_text(encoding="utf-8").splitlines()
    assert surface() == stored


def test_a_bare_import_loads_no_client() -> None:
    assert loaded_by("import sluicegate", *CLIENTS) == []


def test_the_look_at_a_clean_interpreter_sees_what_is_loaded() -> None:
    assert loaded_by("import sluicegate, rich", *CLIENTS) == ["rich"]


@pytest.mark.parametrize(("rule", "known"), PLANTED, ids=named)
def test_a_rule_sees_a_planted_violation(rule: Rule, known: dict[str, str]) -> None:
    assert rule(known)


@pytest.mark.parametrize(("rule", "known"), HARMLESS, ids=named)
def test_a_rule_lets_pass_what_is_allowed(rule: Rule, known: dict[str, str]) -> None:
    assert rule(known) == []


def test_every_rule_has_been_seen_to_fail() -> None:
    assert {rule for rule, _ in PLANTED} == {*RULES, white_boxes.white_boxes_say_so}
