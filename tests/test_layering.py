"""Imports go down only, nothing goes round, and a bare import stays light.

The rules read the sources and never run them; each takes a mapping of module names to sources, so
that a violation can be planted.

1. `edges` finds every import inside the package. An import for the type checkers counts as an edge
   between parts, not towards a cycle; an import inside a function counts for both, so deferring one
   hides nothing.
2. What a part may import stands in `BELOW`. A part that is not in the table is a violation: new
   parts declare themselves there.
3. Imports inside functions are for optional third-party packages.
4. Only `send` hands a batch to a sink.
5. The wheel owns one name, and a second one that only points into the first: Spark looks for data
   sources in modules named `pyspark_*`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest
from tests.surface import surface

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Rule: TypeAlias = "Callable[[Mapping[str, str]], list[str]]"

PACKAGE = "penstock"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE

SHARED = frozenset({"_clients", "letters"})
LEAVES = frozenset({"batcher", "retry", "sinks", "telemetry", "consumer", "sources"})
JOINERS = frozenset({"flow", "spark"})
LIBRARY = SHARED | LEAVES | JOINERS | {"_core", "_maven"}
BELOW: Mapping[str, frozenset[str]] = {
    "": LIBRARY,  # the top-level package itself
    "_core": frozenset(),
    "_maven": frozenset({"_core"}),
    **dict.fromkeys(SHARED | LEAVES, frozenset({"_core"})),
    **dict.fromkeys(("sinks", "consumer", "sources"), SHARED | {"_core"}),
    "flow": SHARED | LEAVES | {"_core"},
    "spark": SHARED | LEAVES | {"_core", "_maven"},
    "testing": LIBRARY,
    "demo": LIBRARY | {"testing"},
    "cli": LIBRARY | {"testing", "demo"},
}
REQUIRED = {"tenacity"}

SIGNPOSTS = {"pyspark_penstock": {"penstock.spark.source"}}
"""Top-level modules beside the package, and the one thing of ours that each may import."""

# Imports inside functions that reach a module of our own, and why.
DEFERRED = {
    (
        "penstock.spark._register",
        "penstock.spark.source",
    ): "PySpark 3.5 has no data sources of Python",
    (
        "penstock.cli",
        "penstock.demo.demo",
    ): "the demo's modules import the packages of its extra, which may be missing",
    (
        "penstock.testing._guard",
        "penstock.testing._processes",
    ): "a guard that waits needs little memory",
    (
        "penstock.testing.plugin",
        "penstock.testing._kafka",
    ): "only tests that ask for the server pay for it",
    (
        "penstock.cli",
        "penstock.cli._pipeline",
    ): "PySpark takes a second to load, and only pipelines need it",
    (
        "penstock.spark.pipeline.pipeline",
        "penstock.spark.pipeline._run",
    ): "a pipeline is checked without Spark, which only a run needs",
    (
        "penstock.cli.tune.tune",
        "penstock.cli.tune.plot",
    ): "drawing needs a package that measuring does not",
    (
        "penstock.testing.plugin",
        "penstock.testing._opensearch",
    ): "only tests that ask for the server pay for it",
    (
        "penstock.sinks.postgres.batches",
        "penstock.sinks.postgres.rows.columns",
    ): "pyarrow and numpy are there when a batch of columns is",
    (
        "penstock.sinks.postgres.sink",
        "penstock.sinks.postgres.rows.types",
    ): "pyarrow is there when a schema is",
    (
        "penstock.testing.plugin",
        "penstock.testing._postgres",
    ): "only tests that ask for the server pay for it",
}

CLIENTS = [
    "aiokafka", "asyncpg", "confluent_kafka", "httpx", "hypothesis", "nats", "numpy", "opentelemetry", "pandas", "prometheus_client",
    "psutil", "pyarrow", "pyspark", "pytest", "rich", "sqlalchemy", "sqlglot",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Import:
    """One import, made absolute: of `name` out of `module`, or of `module` itself."""

    source: str
    module: str
    name: str | None
    line: int
    is_typing: bool
    is_deferred: bool

    def target(self, known: Mapping[str, str]) -> str:
        """The module that is meant: `from package import module` means the latter."""
        full = f"{self.module}.{self.name}"
        return full if full in known else self.module

    def __str__(self) -> str:
        what = self.module if self.name is None else f"{self.name} from {self.module}"
        return f"{self.source}:{self.line} imports {what}"


def sources() -> dict[str, str]:
    """Every module of the package, by its dotted name, and its text."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


def is_package(module: str, known: Mapping[str, str]) -> bool:
    """Whether relative imports in `module` start from itself: it has modules below it, or it is a
    part.
    """
    return any(name.startswith(f"{module}.") for name in known) or (
        module.count(".") < 2 and part_of(module) in BELOW
    )


def imports(module: str, known: Mapping[str, str]) -> Iterator[Import]:
    home = module if is_package(module, known) else module.rpartition(".")[0]

    def absolute(node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        base = home.split(".")[: len(home.split(".")) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])

    def visit(node: ast.AST, *, typing: bool, deferred: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, None, node.lineno, typing, deferred)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import(module, absolute(node), alias.name, node.lineno, typing, deferred)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in {
            "TYPE_CHECKING",
            "typing.TYPE_CHECKING",
        }:
            for statement in node.body:
                yield from visit(statement, typing=True, deferred=deferred)
            for statement in node.orelse:
                yield from visit(statement, typing=typing, deferred=deferred)
        else:
            inside = deferred or isinstance(
                node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
            )
            for child in ast.iter_child_nodes(node):
                yield from visit(child, typing=typing, deferred=inside)

    yield from visit(ast.parse(known[module]), typing=False, deferred=False)


def edges(known: Mapping[str, str]) -> list[Import]:
    """Every import of the package's own modules."""
    return [
        edge
        for module in known
        for edge in imports(module, known)
        if edge.module.split(".")[0] == PACKAGE
    ]


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def cycles(known: Mapping[str, str]) -> list[str]:
    graph: dict[str, set[str]] = {module: set() for module in known}
    for edge in edges(known):
        if not edge.is_typing:
            graph[edge.source].add(edge.target(known))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" <- ".join(error.args[1])]
    return []


def forbidden_edges(known: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    for edge in edges(known):
        mine, theirs = part_of(edge.source), part_of(edge.target(known))
        if theirs and mine != theirs and theirs not in BELOW.get(mine, frozenset()):
            found.append(str(edge))
    return found


def undeclared_parts(known: Mapping[str, str]) -> list[str]:
    return sorted({part_of(module) for module in known} - set(BELOW))


def top_level_imports(known: Mapping[str, str]) -> list[str]:
    return [str(edge) for edge in edges(known) if edge.target(known) == PACKAGE]


def strangers_in_core(known: Mapping[str, str]) -> list[str]:
    """What `_core` imports besides the standard library and itself."""
    allowed = sys.stdlib_module_names | {PACKAGE}
    core = (
        found for module in known if part_of(module) == "_core" for found in imports(module, known)
    )
    return [str(found) for found in core if found.module.split(".")[0] not in allowed]


def needless_deferrals(known: Mapping[str, str]) -> list[str]:
    """Imports inside functions of anything that is always there."""
    always = sys.stdlib_module_names | REQUIRED | {PACKAGE}
    deferred = (
        found
        for module in known
        for found in imports(module, known)
        if found.is_deferred and not found.is_typing
    )
    return [
        str(found)
        for found in deferred
        if found.module.split(".")[0] in always
        and (found.source, found.target(known)) not in DEFERRED
    ]


def foreign_writes(known: Mapping[str, str]) -> list[str]:
    """Calls of a sink's `write` by others than `send`: awaited ones, and those that pass something
    called a batch.

    The parts that stand at the top, `cli` and `testing`, write to files and servers of their own
    and are not looked at.
    """
    looked_at = (
        module for module in known if part_of(module) in LIBRARY and module != "penstock._core.send"
    )
    return [
        f"{module}:{line} writes to a sink"
        for module in looked_at
        for line in _writes(ast.parse(known[module]))
    ]


def _writes(tree: ast.Module) -> Iterator[int]:
    awaited = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Await)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "write"
        ):
            names = [argument.id for argument in node.args if isinstance(argument, ast.Name)]
            if id(node) in awaited or any("batch" in name for name in names):
                yield node.lineno


RULES: list[Rule] = [
    cycles,
    forbidden_edges,
    undeclared_parts,
    top_level_imports,
    strangers_in_core,
    needless_deferrals,
    foreign_writes,
]


def loaded_by(statement: str, *suspects: str) -> list[str]:
    """Which of `suspects` a clean interpreter has loaded after `statement`."""
    program = (
        f"{statement}\nimport sys\nprint(*sorted({{n.split('.')[0] for n in "
        f"sys.modules}} & {set(suspects)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
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


def test_every_listed_deferral_is_still_made() -> None:
    known = sources()
    made = {(found.source, found.target(known)) for found in edges(known) if found.is_deferred}
    assert set(DEFERRED) <= made


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
        assert {found.target(known) for found in imports(name, {**known, name: text})} == targets
        assert not [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        ]


def test_the_public_names_and_signatures_are_those_that_were_stored() -> None:
    """Whoever changes one on purpose stores the new list: `python tests/surface.py >
    tests/surface.txt`.
    """
    stored = (Path(__file__).parent / "surface.txt").read_text(encoding="utf-8").splitlines()
    assert surface() == stored


def test_a_bare_import_loads_no_client() -> None:
    assert loaded_by("import penstock", *CLIENTS) == []


def test_the_look_at_a_clean_interpreter_sees_what_is_loaded() -> None:
    assert loaded_by("import penstock, rich", *CLIENTS) == ["rich"]


TYPING_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {0} import {1}"
PLANTED: list[tuple[Rule, dict[str, str]]] = [
    (cycles, {"penstock._core.a": "from .b import x", "penstock._core.b": "from . import a"}),
    (
        cycles,
        {
            "penstock._core.a": "from .b import x",
            "penstock._core.b": "def f():\n    from .a import y",
        },
    ),
    (cycles, {"penstock.batcher": "from .a import x", "penstock.batcher.a": "from . import y"}),
    (forbidden_edges, {"penstock._core.a": "from ..batcher.b import x", "penstock.batcher.b": ""}),
    (forbidden_edges, {"penstock.retry.a": "from .. import sinks", "penstock.sinks": ""}),
    (forbidden_edges, {"penstock.sinks.a": "import penstock.batcher", "penstock.batcher": ""}),
    (
        forbidden_edges,
        {
            "penstock.consumer.a": TYPING_ONLY.format("penstock.sources.b", "x"),
            "penstock.sources.b": "",
        },
    ),
    (forbidden_edges, {"penstock.flow.a": "from ..spark.b import x", "penstock.spark.b": ""}),
    (forbidden_edges, {"penstock.sinks.a": "from .. import _maven", "penstock._maven": ""}),
    (forbidden_edges, {"penstock": "from .testing import FakeClock", "penstock.testing": ""}),
    (forbidden_edges, {"penstock.testing.a": "from ..cli import main", "penstock.cli": ""}),
    (undeclared_parts, {"penstock.helpers.a": ""}),
    (top_level_imports, {"penstock.batcher.a": "from .. import Batch", "penstock": ""}),
    (top_level_imports, {"penstock.cli.a": "from penstock import Batcher", "penstock": ""}),
    (top_level_imports, {"penstock.testing.a": "import penstock", "penstock": ""}),
    (strangers_in_core, {"penstock._core.a": "import tenacity"}),
    (strangers_in_core, {"penstock._core.a": TYPING_ONLY.format("asyncpg.pool", "Pool")}),
    (
        needless_deferrals,
        {"penstock.sinks.a": "def f():\n    from .b import x", "penstock.sinks.b": ""},
    ),
    (needless_deferrals, {"penstock.sinks.a": "async def f():\n    import json"}),
    (
        needless_deferrals,
        {"penstock.retry.a": "class A:\n    def f(self):\n        import tenacity"},
    ),
    (
        foreign_writes,
        {"penstock.sinks.a": "async def f(sink, items):\n    return await sink.write(items)"},
    ),
    (
        foreign_writes,
        {"penstock.retry.a": "def f(self, batch):\n    return self.inner.write(batch)"},
    ),
    (foreign_writes, {"penstock._core.a": "async def f(sink, b):\n    await sink.write(b)"}),
]
HARMLESS: list[tuple[Rule, dict[str, str]]] = [
    (
        cycles,
        {
            "penstock._core.a": "from .b import x",
            "penstock._core.b": TYPING_ONLY.format("penstock._core.a", "y"),
        },
    ),
    (forbidden_edges, {"penstock.flow.a": "from ..consumer.b import x", "penstock.consumer.b": ""}),
    (forbidden_edges, {"penstock.cli.a": "from ..testing import x", "penstock.testing": ""}),
    (
        top_level_imports,
        {"penstock.cli.a": "from penstock import sinks", "penstock": "", "penstock.sinks": ""},
    ),
    (
        strangers_in_core,
        {
            "penstock._core.a": "import asyncio\nfrom collections.abc import Mapping\nfrom .b "
            "import x"
        },
    ),
    (
        needless_deferrals,
        {"penstock.sinks.a": "def f():\n    import asyncpg\n    from httpx import Client"},
    ),
    (foreign_writes, {"penstock.sinks.a": "def f(file, text):\n    file.write(text)"}),
    (
        foreign_writes,
        {"penstock._core.send": "async def f(sink, batch):\n    await sink.write(batch)"},
    ),
]


@pytest.mark.parametrize(("rule", "known"), PLANTED, ids=named)
def test_a_rule_sees_a_planted_violation(rule: Rule, known: dict[str, str]) -> None:
    assert rule(known)


@pytest.mark.parametrize(("rule", "known"), HARMLESS, ids=named)
def test_a_rule_lets_pass_what_is_allowed(rule: Rule, known: dict[str, str]) -> None:
    assert rule(known) == []


def test_every_rule_has_been_seen_to_fail() -> None:
    assert {rule for rule, _ in PLANTED} == set(RULES)
