"""Files, functions and classes stay small, and a class name has one meaning.

1. A file has at most 400 lines, a function's body at most 60 after its docstring.
2. A class has at most 15 attributes: annotated fields, slots, and assignments of its methods to
   `self`. The keys of a `TypedDict` describe arguments and do not count.
3. A Protocol has at most 10 members, including inherited ones.
4. No two classes of the package share a name.

`MANY_ATTRIBUTES`, `MANY_MEMBERS` and `SHARED_NAMES` list the exceptions. An unnecessary entry is
itself a violation.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.layering.sources import (
    Case,
    Function,
    Rule,
    Sources,
    attributes,
    bases,
    classes,
    functions,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_LINES = 400
FUNCTION_LINES = 60
ATTRIBUTES = 15
MEMBERS = 10

# Classes that may have more attributes, and why.
MANY_ATTRIBUTES = {
    ("penstock.batcher.report", "Stats"): "a frozen public snapshot: one field per figure",
    ("penstock.batcher.setup", "BatcherOptions"): "the keywords of a batcher, named once",
    ("penstock.batcher.setup", "Setup"): "frozen: one field per argument, passed whole",
    (
        "penstock.consumer.settings",
        "ConsumerSettings",
    ): "frozen: one field per argument, passed whole",
    ("penstock.letters.letter", "Letter"): "a frozen public record: one field per column",
    ("penstock.letters.record", "DeadLetterRecord"): "a frozen public record: one field per column",
    (
        "penstock.spark.pipeline.declaration",
        "Write",
    ): "a frozen public declaration: one field per setting",
}

# Protocols that may have more members, and why.
MANY_MEMBERS: dict[tuple[str, str], str] = {
    (
        "penstock.batcher.gathering.gatherer",
        "Gatherer",
    ): "the seven questions, `seal`, and what fences, tenants and the fast path have to know",
}


def long_files(known: Sources) -> list[str]:
    lengths = {module: len(text.splitlines()) for module, text in known.items()}
    return [f"{module}: {n} lines" for module, n in lengths.items() if n > FILE_LINES]


def long_functions(known: Sources) -> list[str]:
    return [
        f"{module}:{function.lineno}: {function.name} has {body_lines(function)} lines"
        for module in known
        for function in functions(module, known)
        if body_lines(function) > FUNCTION_LINES
    ]


def body_lines(function: Function) -> int:
    """The lines of a body, from its first to its last statement, without the docstring."""
    start = function.body[0]
    has_text = ast.get_docstring(function, clean=False) is not None
    last, before = function.end_lineno or 0, start.end_lineno or 0
    return last - before if has_text else last - start.lineno + 1


def large_classes(known: Sources) -> list[str]:
    """Classes with too many attributes, and listed exceptions that are unnecessary."""
    sizes = {
        (module, kind.name): len(attributes(kind))
        for module in known
        for kind in classes(module, known)
        if not bases(kind) & {"Protocol", "TypedDict"}
    }
    return [*_above(ATTRIBUTES, sizes, MANY_ATTRIBUTES, "attributes")]


def large_protocols(known: Sources) -> list[str]:
    """Protocols with too many members, and listed exceptions that are unnecessary."""
    protocols = {
        (module, kind.name): kind
        for module in known
        for kind in classes(module, known)
        if "Protocol" in bases(kind)
    }
    by_name = {kind.name: kind for kind in protocols.values()}
    sizes = {where: len(_members(kind, by_name)) for where, kind in protocols.items()}
    return [*_above(MEMBERS, sizes, MANY_MEMBERS, "members")]


def _members(kind: ast.ClassDef, protocols: dict[str, ast.ClassDef]) -> set[str]:
    own = {
        node.name for node in kind.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    } | attributes(kind)
    inherited = (_members(protocols[base], protocols) for base in bases(kind) if base in protocols)
    return own.union(*inherited)


def _above(
    limit: int, sizes: dict[tuple[str, str], int], excused: dict[tuple[str, str], str], what: str
) -> Iterator[str]:
    for (module, name), size in sizes.items():
        if size > limit and (module, name) not in excused:
            yield f"{module}: {name} has {size} {what}"
        elif size <= limit and (module, name) in excused:
            yield f"{module}: {name} needs no exception, with {size} {what}"


# Names that two public classes have, and where.
SHARED_NAMES = {
    "Destination": {"penstock.spark.pipeline.declaration", "penstock.testing.load.destination"},
    "Source": {"penstock._core.source", "penstock.spark.pipeline.declaration"},
}


def shared_names(known: Sources) -> list[str]:
    """Class names that occur twice, and listed exceptions that are unnecessary."""
    where: dict[str, list[str]] = defaultdict(list)
    for module in known:
        for kind in classes(module, known):
            where[kind.name].append(module)
    shared = {name: modules for name, modules in where.items() if len(modules) > 1}
    found = [
        f"{modules[0]}: {name} is also in {', '.join(modules[1:])}"
        for name, modules in shared.items()
        if set(modules) != SHARED_NAMES.get(name)
    ]
    return found + [
        f"{min(modules)}: {name} needs no exception"
        for name, modules in SHARED_NAMES.items()
        if modules <= known.keys() and name not in shared
    ]


RULES: list[Rule] = [
    long_files,
    long_functions,
    large_classes,
    large_protocols,
    shared_names,
]


def _lines(count: int, text: str = "    pass\n") -> str:
    return text * count


_SIXTEEN = [f"a{number}" for number in range(16)]
_FIELDS = "".join(f"    {name}: int\n" for name in _SIXTEEN)
_ASSIGNED = "".join(f"        self.{name} = 0\n" for name in _SIXTEEN)
_SIX = "".join(f"    def m{number}(self): ...\n" for number in range(6))
_MORE = "".join(f"    def n{number}(self): ...\n" for number in range(5))

PLANTED: list[Case] = [
    (long_files, {"penstock.a": "x = 1\n" * 401}),
    (long_functions, {"penstock.a": "def f():\n" + _lines(61)}),
    (long_functions, {"penstock.a": 'def f():\n    """Text."""\n' + _lines(61)}),
    (
        long_functions,
        {"penstock.a": "class A:\n    async def f(self):\n" + _lines(61, "        pass\n")},
    ),
    (large_classes, {"penstock.a": f"class A:\n{_FIELDS}"}),
    (large_classes, {"penstock.a": f"class A(NamedTuple):\n{_FIELDS}"}),
    (large_classes, {"penstock.a": f"class A:\n    def f(self):\n{_ASSIGNED}"}),
    (large_classes, {"penstock.a": f"class A:\n    __slots__ = {tuple(_SIXTEEN)!r}"}),
    (
        large_classes,
        {
            "penstock.a": "class A:\n    x: int\n    def f(self):\n        self.y, self.z = 1, 2\n"
            + _FIELDS.removeprefix("    a0: int\n    a1: int\n")
        },
    ),
    (large_classes, {"penstock.batcher.report": "class Stats:\n    x: int"}),
    (large_protocols, {"penstock.a": f"class A(Protocol):\n{_SIX}{_MORE}"}),
    (large_protocols, {"penstock.a": f"class A(Protocol[T]):\n{_FIELDS}"}),
    (
        large_protocols,
        {
            "penstock.a": f"class A(Protocol):\n{_SIX}",
            "penstock.b": f"class B(A, Protocol):\n{_MORE}",
        },
    ),
    (shared_names, {"penstock.a": "class A: ...", "penstock.b": "class A: ..."}),
    (shared_names, {"penstock.a": "class A: ...\ndef f():\n    class A: ..."}),
]
HARMLESS: list[Case] = [
    (long_files, {"penstock.a": "x = 1\n" * 400}),
    (
        long_functions,
        {
            "penstock.a": 'def f(\n    a,\n    b,\n):\n    """Text.\n\n    More.\n    """\n'
            + _lines(60)
        },
    ),
    (large_classes, {"penstock.a": f"class A(TypedDict, total=False):\n{_FIELDS}"}),
    (
        large_classes,
        {"penstock.a": f"class A:\n{_FIELDS}".replace(": int", ": ClassVar[int]")},
    ),
    (
        large_classes,
        {
            "penstock.a": f"class A:\n    def f(self, other):\n{_ASSIGNED}".replace(
                "self.", "other."
            )
        },
    ),
    (large_protocols, {"penstock.a": f"class A(Protocol):\n{_SIX}\nclass B(Protocol):\n{_MORE}"}),
    (large_protocols, {"penstock.a": f"class A:\n{_SIX}{_MORE}"}),
    (shared_names, {"penstock.a": "class A: ...", "penstock.b": "class B: ..."}),
]
