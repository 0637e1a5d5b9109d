"""Names loaded on first access are declared where every other rule sees them.

1. A table of `later` lists the same names of the same modules as the imports under `TYPE_CHECKING`
   beside it: `if TYPE_CHECKING: ... else: __getattr__, __dir__ = later(__name__, {...})`. These
   imports count for the rules of `imports` like any other.
2. Only a package's `__init__` has such a table: the parts import one another in plain sight.
3. Modules are imported by a computed name only where the name comes from the user.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.layering.sources import Case, Rule, Sources, dotted, is_package, last_name, nodes, tree

if TYPE_CHECKING:
    from collections.abc import Iterator

BY_NAME = {
    "sluicegate._core.public": "the mechanism behind the tables",
    "sluicegate.cli": "the table of command groups",
    "sluicegate.cli.named": "the user names an object of the program",
    "sluicegate.telemetry.prometheus": "the tables of metrics of technologies",
    "sluicegate.spark.pipeline.sinks": "the user names a sink's module",
}


def unlisted_names(known: Sources) -> list[str]:
    """Names that are only in a table, or only in the imports beside it."""
    found: list[str] = []
    for module in known:
        tables = _tables_of(known[module])
        if tables:
            listed = set().union(*(_listed(table) for table in tables))
            found += [
                f"{module}: {name} of {home} is not both listed and imported"
                for home, name in sorted(listed ^ set(_imported(tree(known[module]))))
            ]
    return found


def misplaced_tables(known: Sources) -> list[str]:
    return [
        f"{module}: has a table of later imports"
        for module in known
        if _tables_of(known[module]) and not is_package(module, known)
    ]


def computed_imports(known: Sources) -> list[str]:
    """Imports by a computed name, which no rule can read."""
    return [
        f"{module}:{node.lineno}: {ast.unparse(node.func)}"
        for module in known.keys() - BY_NAME.keys()
        for node in nodes(known[module])
        if isinstance(node, ast.Call) and last_name(node.func) in {"import_module", "__import__"}
    ]


def _tables_of(text: str) -> list[ast.expr]:
    return list(_tables(tree(text))) if "later" in text else []


def _tables(root: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(root):
        if isinstance(node, ast.Call) and last_name(node.func) == "later":
            yield node.args[1]


def _listed(table: ast.expr) -> set[tuple[str, str]]:
    """The pairs of module and name; a table must be a literal."""
    return {(home, name) for home, names in ast.literal_eval(table).items() for name in names}


def _imported(root: ast.Module) -> Iterator[tuple[str, str]]:
    """The same pairs from the imports for type checkers whose `else` contains a table."""
    for node in root.body:
        if (
            isinstance(node, ast.If)
            and dotted(node.test) == "TYPE_CHECKING"
            and any(list(_tables(statement)) for statement in node.orelse)
        ):
            yield from _pairs(node.body)


def _pairs(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement in body:
        if isinstance(statement, ast.ImportFrom):
            home = "." * (statement.level - 1) + (statement.module or "")
            yield from ((home, alias.asname or alias.name) for alias in statement.names)


RULES: list[Rule] = [unlisted_names, misplaced_tables, computed_imports]

_TABLE = (
    "if TYPE_CHECKING:\n    from .retry import {0}\nelse:\n"
    "    __getattr__, __dir__ = later(__name__, {1})"
)
PLANTED: list[Case] = [
    (unlisted_names, {"sluicegate": _TABLE.format("Retry", {"retry": ["Retry", "Backoff"]})}),
    (unlisted_names, {"sluicegate": _TABLE.format("Retry, Backoff", {"retry": ["Retry"]})}),
    (unlisted_names, {"sluicegate": _TABLE.format("Retry", {"sinks": ["Retry"]})}),
    (unlisted_names, {"sluicegate": "__getattr__, __dir__ = later(__name__, {'a': ['b']})"}),
    (
        unlisted_names,
        {"sluicegate": "if TYPE_CHECKING:\n    from .a import b\nlater(__name__, {'a': ['b']})"},
    ),
    (misplaced_tables, {"sluicegate.sinks.a": _TABLE.format("Retry", {"retry": ["Retry"]})}),
    (computed_imports, {"sluicegate.sinks.a": "def f():\n    importlib.import_module('x')"}),
    (computed_imports, {"sluicegate.sinks.a": "x = __import__('sluicegate.sinks.b')"}),
]
HARMLESS: list[Case] = [
    (unlisted_names, {"sluicegate": _TABLE.format("Retry", {"retry": ["Retry"]})}),
    (unlisted_names, {"sluicegate.a": "if TYPE_CHECKING:\n    from .b import c\nelse:\n    c = 1"}),
    (
        misplaced_tables,
        {
            "sluicegate.sinks": _TABLE.format("Retry", {"retry": ["Retry"]}),
            "sluicegate.sinks.a": "",
        },
    ),
    (computed_imports, {"sluicegate.cli.named": "import_module(name)"}),
]
