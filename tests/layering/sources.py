"""The input of the rules: the text of every module, its tree, its imports, its classes.

The rules never run the sources. Each takes a mapping of module names to sources, so that a
violation can be planted, and returns messages that begin with the module's name and a colon.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "sluicegate"
SOURCE = Path(__file__).parents[2] / "src" / PACKAGE

Sources: TypeAlias = Mapping[str, str]
Rule: TypeAlias = Callable[[Sources], list[str]]
Case: TypeAlias = tuple[Rule, dict[str, str]]
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

CORE = frozenset({"_core"})
STAGES = frozenset({"batcher", "retry", "telemetry", "letters", "sinks", "consumer"})
ENGINE = CORE | STAGES | {"flow"}
TECHNOLOGIES = frozenset(
    {
        "clickhouse",
        "files",
        "http",
        "kafka",
        "nats",
        "objects",
        "postgres",
        "redis",
        "spark",
        "sql",
        "udp",
    }
)
USES = {
    "clickhouse": frozenset({"http"}),  # it is spoken to over HTTP
    "kafka": frozenset({"http"}),  # so is the registry of its schemas
    "spark": frozenset({"kafka"}),  # the codecs of a topic's values
}
LIBRARY = ENGINE | TECHNOLOGIES
BELOW: Mapping[str, frozenset[str]] = {
    "": LIBRARY | {"errors"},  # the top-level package itself
    "errors": CORE,  # the public names of all errors
    "_core": frozenset(),
    **dict.fromkeys(("batcher", "retry", "telemetry", "letters"), CORE),
    **dict.fromkeys(("sinks", "consumer"), CORE | {"letters"}),
    "flow": CORE | STAGES,
    **{name: ENGINE | USES.get(name, frozenset()) for name in TECHNOLOGIES},
    "testing": ENGINE,
    "cli": ENGINE | {"testing"},
    "console": LIBRARY | {"cli"},  # it does what the commands do
}
ROOMS = {"commands": "cli", "server": "testing"}
"""The modules of a technology or the console, by the last part of their package or name, that may
import a part above: its commands, and its embedded server.
"""
TABLES = frozenset(
    {
        f"{PACKAGE}.sinks",  # the shelf: every destination's sink
        f"{PACKAGE}.testing",  # embedded servers
        f"{PACKAGE}.cli.dlq",  # the stores of dead letters
    }
)
"""The packages whose table of later imports may name a technology."""

tree = lru_cache(maxsize=None)(ast.parse)
"""The tree of a module's text, parsed once for all rules."""


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
        """The imported module: in `from package import module` it is the latter."""
        full = f"{self.module}.{self.name}"
        return full if full in known else self.module

    def __str__(self) -> str:
        what = self.module if self.name is None else f"{self.name} from {self.module}"
        return f"{self.source}:{self.line}: imports {what}"


def sources() -> dict[str, str]:
    """Every module of the package, by its dotted name, and its text."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


def is_package(module: str, known: Mapping[str, str]) -> bool:
    """Whether relative imports in `module` start from itself: it contains modules, or it is a
    part.
    """
    start = f"{module}."
    return any(name.startswith(start) for name in known) or (
        module.count(".") < 2 and part_of(module) in BELOW
    )


def imports(module: str, known: Mapping[str, str]) -> tuple[Import, ...]:
    home = module if is_package(module, known) else module.rpartition(".")[0]
    return _imports(module, home, known[module])


@cache
def _imports(module: str, home: str, text: str) -> tuple[Import, ...]:
    found: list[Import] = []

    def absolute(node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        base = home.split(".")[: len(home.split(".")) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])

    for node, typing, deferred in _statements(text):
        for alias in node.names:
            at = node.lineno, typing, deferred
            if isinstance(node, ast.Import):
                found.append(Import(module, alias.name, None, *at))
            else:
                found.append(Import(module, absolute(node), alias.name, *at))
    return tuple(found)


@cache
def _statements(text: str) -> list[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    """Each import statement of a module: whether it is for types only, and whether it is inside a
    function.
    """
    found: list[tuple[ast.Import | ast.ImportFrom, bool, bool]] = []

    def visit(node: ast.AST, *, typing: bool, deferred: bool) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, typing, deferred))
        elif isinstance(node, ast.If) and last_name(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                visit(statement, typing=True, deferred=deferred)
            for statement in node.orelse:
                visit(statement, typing=typing, deferred=deferred)
        else:
            inside = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for child in ast.iter_child_nodes(node):
                if not isinstance(child, ast.expr):  # no expression contains a statement
                    visit(child, typing=typing, deferred=inside)

    visit(tree(text), typing=False, deferred=False)
    return found


@cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """All nodes of a module's tree, walked once for all rules."""
    return tuple(ast.walk(tree(text)))


def dotted(node: ast.expr) -> str:
    """The text of a name, or of an attribute of one, and otherwise nothing."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def last_name(node: ast.expr) -> str:
    """A name, or the name of an attribute, whatever it is an attribute of."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


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


def classes(text: str) -> Iterator[ast.ClassDef]:
    return (node for node in nodes(text) if isinstance(node, ast.ClassDef))


def methods(kind: ast.ClassDef) -> Iterator[Function]:
    return (node for node in kind.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def decorators(function: Function) -> set[str]:
    return {ast.unparse(decorator) for decorator in function.decorator_list}


def fields(kind: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The annotated fields of a class, each with the name of its type, without parameters."""
    for node in kind.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            of = node.annotation
            yield node.target.id, dotted(of.value if isinstance(of, ast.Subscript) else of)


def attributes(kind: ast.ClassDef) -> set[str]:
    """The attributes of a class's instances: annotated fields, slots, and assignments to `self`."""
    found = {name for name, annotation in fields(kind) if annotation not in {"ClassVar", "InitVar"}}
    for node in kind.body:
        if isinstance(node, ast.Assign) and dotted(node.targets[0]) == "__slots__":
            found |= {
                each.value
                for each in ast.walk(node.value)
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            }
    for method in methods(kind):
        if method.args.args and not decorators(method) & {"classmethod", "staticmethod"}:
            found |= _assigned(method, method.args.args[0].arg)
    return found


def _assigned(method: Function, own: str) -> set[str]:
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == own
    }
