"""Imports go downwards only, without cycles, and nothing is loaded unnecessarily.

1. `edges` finds every import inside the package. Imports for type checkers count like any other,
   and so do imports inside functions: a deferred import hides nothing.
2. `BELOW` lists what each part may import: the engine no technology, but for the tables of names in
   `TABLES`; a technology the engine and what `USES` allows, and from `ROOMS` also what is above. A
   part that is not in the table is a violation: new parts must be added.
3. Imports inside functions are for optional third-party packages, and for modules of the package
   that import one when they are loaded.
4. Only `send` passes a batch to a sink.
"""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

from tests.layering.sources import (
    BELOW,
    LIBRARY,
    PACKAGE,
    ROOMS,
    TABLES,
    TECHNOLOGIES,
    Case,
    Rule,
    Sources,
    edges,
    imports,
    nodes,
    part_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUIRED = {"tenacity"}

# Imports of the package's own modules inside functions, with reasons.
DEFERRED = {
    (
        "sluicegate.testing.plugin",
        "sluicegate.testing",
    ): "only tests that ask for a server pay for it",
    ("sluicegate.spark.avro", "sluicegate.kafka"): "every worker of Spark would pay for it",
}


def cycles(known: Sources) -> list[str]:
    """Groups of modules that import one another, directly or indirectly."""
    targets: dict[str, set[str]] = {module: set() for module in known}
    for edge in edges(known):
        targets[edge.source].add(edge.target(known))
    below = {module: _reached(module, targets) for module in known}
    groups = {
        tuple(sorted(other for other in below[module] if module in below.get(other, ())))
        for module in known
        if module in below[module]
    }
    return [f"{group[0]}: a cycle of {', '.join(group)}" for group in sorted(groups)]


def _reached(module: str, targets: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ahead = [module]
    while ahead:
        new = targets.get(ahead.pop(), set()) - found
        found |= new
        ahead += new
    return found


def forbidden_edges(known: Sources) -> list[str]:
    found: list[str] = []
    for edge in edges(known):
        mine, theirs = part_of(edge.source), part_of(edge.target(known))
        below = BELOW.get(mine, frozenset())
        if mine in TECHNOLOGIES:
            below |= {ROOMS[room] for room in edge.source.split(".")[2:] if room in ROOMS}
        if edge.source in TABLES and edge.is_typing:
            below |= TECHNOLOGIES  # the table beside it lists the same names
        if theirs and mine != theirs and theirs not in below:
            found.append(str(edge))
    return found


def undeclared_parts(known: Sources) -> list[str]:
    return [
        f"{module}: its part is not declared" for module in known if part_of(module) not in BELOW
    ]


def top_level_imports(known: Sources) -> list[str]:
    return [str(edge) for edge in edges(known) if edge.target(known) == PACKAGE]


def strangers_in_core(known: Sources) -> list[str]:
    """The imports of `_core` other than the standard library and itself; its `values` may need an
    optional package when a value does.
    """
    allowed = sys.stdlib_module_names | {PACKAGE}
    core = (
        found for module in known if part_of(module) == "_core" for found in imports(module, known)
    )
    return [
        str(found)
        for found in core
        if found.module.split(".")[0] not in allowed
        and not (found.is_deferred and found.source.startswith(f"{PACKAGE}._core.values."))
    ]


def needless_deferrals(known: Sources) -> list[str]:
    """Imports inside functions of modules that are always available."""
    always = sys.stdlib_module_names | REQUIRED | {PACKAGE}
    optional = _loading_others(known, always)
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
        and found.target(known) not in optional
        and (found.source, found.target(known)) not in DEFERRED
    ]


def _loading_others(known: Sources, always: frozenset[str]) -> set[str]:
    """The modules that load a package which may be missing, directly or through other modules."""
    loaded_by: dict[str, set[str]] = {}
    for module in known:
        for found in imports(module, known):
            if not found.is_deferred and not found.is_typing:
                loaded_by.setdefault(found.target(known), set()).add(module)
    others = [each for each in loaded_by if each.split(".")[0] not in always]
    return set().union(*(_reached(each, loaded_by) for each in others))


def foreign_writes(known: Sources) -> list[str]:
    """Calls of a sink's `write` outside `send`: awaited calls, and calls with an argument named
    like a batch.

    The top-level parts `cli` and `testing` write to their own files and servers and are not
    checked.
    """
    looked_at = (
        module
        for module in known
        if part_of(module) in LIBRARY and module != "sluicegate._core.send"
    )
    return [
        f"{module}:{line}: writes to a sink"
        for module in looked_at
        for line in _writes(nodes(known[module]))
    ]


def _writes(found: tuple[ast.AST, ...]) -> Iterator[int]:
    awaited = {id(node.value) for node in found if isinstance(node, ast.Await)}
    for node in found:
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


TYPING_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {0} import {1}"
PLANTED: list[Case] = [
    (cycles, {"sluicegate._core.a": "from .b import x", "sluicegate._core.b": "from . import a"}),
    (
        cycles,
        {
            "sluicegate._core.a": "from .b import x",
            "sluicegate._core.b": "def f():\n    from .a import y",
        },
    ),
    (
        cycles,
        {
            "sluicegate._core.a": "from .b import x",
            "sluicegate._core.b": TYPING_ONLY.format("sluicegate._core.a", "y"),
        },
    ),
    (cycles, {"sluicegate.batcher": "from .a import x", "sluicegate.batcher.a": "from . import y"}),
    (
        forbidden_edges,
        {"sluicegate._core.a": "from ..batcher.b import x", "sluicegate.batcher.b": ""},
    ),
    (forbidden_edges, {"sluicegate.retry.a": "from .. import sinks", "sluicegate.sinks": ""}),
    (
        forbidden_edges,
        {"sluicegate.sinks.a": "import sluicegate.batcher", "sluicegate.batcher": ""},
    ),
    (
        forbidden_edges,
        {
            "sluicegate.consumer.a": TYPING_ONLY.format("sluicegate.kafka.b", "x"),
            "sluicegate.kafka.b": "",
        },
    ),
    (forbidden_edges, {"sluicegate.flow.a": "from ..spark.b import x", "sluicegate.spark.b": ""}),
    (forbidden_edges, {"sluicegate._core.a": "from ..http import x", "sluicegate.http": ""}),
    (
        forbidden_edges,
        {"sluicegate.kafka.a": "from ..postgres.b import x", "sluicegate.postgres.b": ""},
    ),
    (
        forbidden_edges,
        {"sluicegate.http.a": "from ..clickhouse import x", "sluicegate.clickhouse": ""},
    ),
    (
        forbidden_edges,
        {"sluicegate.spark.a": "from ..postgres import x", "sluicegate.postgres": ""},
    ),
    (forbidden_edges, {"sluicegate.sinks": "from ..kafka import x", "sluicegate.kafka": ""}),
    (
        forbidden_edges,
        {"sluicegate.kafka.sink": "from ..cli.console import OK", "sluicegate.cli.console": ""},
    ),
    (
        forbidden_edges,
        {"sluicegate.nats.a": "from ..testing.b import x", "sluicegate.testing.b": ""},
    ),
    (
        cycles,
        {
            "sluicegate.sinks": TYPING_ONLY.format("sluicegate.kafka", "KafkaSink"),
            "sluicegate.kafka": "from ..sinks import Timeout",
        },
    ),
    (forbidden_edges, {"sluicegate": "from .testing import FakeClock", "sluicegate.testing": ""}),
    (forbidden_edges, {"sluicegate.testing.a": "from ..cli import main", "sluicegate.cli": ""}),
    (undeclared_parts, {"sluicegate.helpers.a": ""}),
    (top_level_imports, {"sluicegate.batcher.a": "from .. import Batch", "sluicegate": ""}),
    (top_level_imports, {"sluicegate.cli.a": "from sluicegate import Batcher", "sluicegate": ""}),
    (top_level_imports, {"sluicegate.testing.a": "import sluicegate", "sluicegate": ""}),
    (strangers_in_core, {"sluicegate._core.a": "import tenacity"}),
    (strangers_in_core, {"sluicegate._core.a": "def f():\n    import zstandard"}),
    (strangers_in_core, {"sluicegate._core.values.a": "import zstandard"}),
    (strangers_in_core, {"sluicegate._core.a": TYPING_ONLY.format("asyncpg.pool", "Pool")}),
    (
        needless_deferrals,
        {"sluicegate.sinks.a": "def f():\n    from .b import x", "sluicegate.sinks.b": ""},
    ),
    (needless_deferrals, {"sluicegate.sinks.a": "async def f():\n    import json"}),
    (
        needless_deferrals,
        {"sluicegate.retry.a": "class A:\n    def f(self):\n        import tenacity"},
    ),
    (
        foreign_writes,
        {"sluicegate.sinks.a": "async def f(sink, items):\n    return await sink.write(items)"},
    ),
    (
        foreign_writes,
        {"sluicegate.retry.a": "def f(self, batch):\n    return self.inner.write(batch)"},
    ),
    (foreign_writes, {"sluicegate._core.a": "async def f(sink, b):\n    await sink.write(b)"}),
]
HARMLESS: list[Case] = [
    (
        cycles,
        {
            "sluicegate._core.a": "from .b import x",
            "sluicegate._core.b": "from .c import y",
            "sluicegate._core.c": "",
        },
    ),
    (
        forbidden_edges,
        {"sluicegate.flow.a": "from ..consumer.b import x", "sluicegate.consumer.b": ""},
    ),
    (forbidden_edges, {"sluicegate.cli.a": "from ..testing import x", "sluicegate.testing": ""}),
    (forbidden_edges, {"sluicegate.clickhouse.a": "from ..http import x", "sluicegate.http": ""}),
    (
        forbidden_edges,
        {"sluicegate.kafka.source.a": "from ...consumer import x", "sluicegate.consumer": ""},
    ),
    (
        forbidden_edges,
        {"sluicegate.kafka.commands.a": "from ...cli.b import x", "sluicegate.cli.b": ""},
    ),
    (
        forbidden_edges,
        {"sluicegate.kafka.server": "from ..testing.b import x", "sluicegate.testing.b": ""},
    ),
    (
        forbidden_edges,
        {
            "sluicegate.sinks": TYPING_ONLY.format("sluicegate.kafka", "KafkaSink"),
            "sluicegate.kafka": "",
        },
    ),
    (
        top_level_imports,
        {
            "sluicegate.cli.a": "from sluicegate import sinks",
            "sluicegate": "",
            "sluicegate.sinks": "",
        },
    ),
    (
        strangers_in_core,
        {
            "sluicegate._core.a": "import asyncio\nfrom collections.abc import Mapping\nfrom .b "
            "import x"
        },
    ),
    (
        needless_deferrals,
        {"sluicegate.sinks.a": "def f():\n    import asyncpg\n    from httpx import Client"},
    ),
    (foreign_writes, {"sluicegate.sinks.a": "def f(file, text):\n    file.write(text)"}),
    (
        foreign_writes,
        {"sluicegate._core.send": "async def f(sink, batch):\n    await sink.write(batch)"},
    ),
]
