"""Objects are changed only by their own methods, and other code uses their public names.

1. An attribute is assigned, deleted or bound by a loop only on the first argument of a method of
   the same class. `setattr` with a literal name counts as an assignment, and so does
   `object.__setattr__`. Two things are allowed besides:
   - the maker of an object may finish it: a method of class `C` may assign attributes of a local
     name that is bound to a new `C` and to nothing else;
   - the nodes in `NODES` are written by the structure that owns them, in the same module.
   Special attributes such as `__cause__`, and those that annotate an error, are written in the
   one module that `SPECIAL` names.
2. A private attribute is reached on another object only in the module that declares it, and a
   private name is not imported. Public in spite of its underscore: `UNDERSCORED`.
3. `getattr` and `hasattr` with a literal name are for the objects of others. A name that a class of
   ours declares is used as an attribute, declared in a Protocol or in `Capabilities`; `PROBES`
   lists the places that must probe, each with its reason.

An entry of a list that is not used is itself a violation.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import TYPE_CHECKING

from tests.layering.sources import (
    Case,
    Function,
    Rule,
    Sources,
    attributes,
    classes,
    decorators,
    dotted,
    edges,
    methods,
    nodes,
    tree,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# Private nodes of a linked structure, written by the structure in the same module, and why.
NODES = dict.fromkeys(
    (("sluicegate._core.order.lanes", "Lane"), ("sluicegate._core.order.lanes", "Entry")),
    "a lane is a linked list: an item leaves its middle in constant time, and `Lanes` relinks it",
)

# Attributes of objects from outside the package: private ones that are reached, and any that are
# written.
STRANGERS: dict[tuple[str, str], str] = {
    ("sluicegate._core.runtime.loop_thread", "_register_atexit"): "no public hook runs this early",
    (
        "sluicegate._core.runtime.loops",
        "_get_running_loop",
    ): "the public twin raises without a loop",
    ("sluicegate._core.runtime.cuts", "_parent_cancel_requested"): "nothing public tells it",
    ("sluicegate._core.runtime.cuts", "_parent_task"): "nothing public tells it",
    ("sluicegate.postgres.client.connections", "_loop"): "asyncpg does not tell a pool's loop",
    (
        "sluicegate.postgres.client.statements",
        "_config",
    ): "asyncpg does not tell the size of a cache",
    ("sluicegate.nats.client", "_io_writer"): "nats-py has no way to abort a connection",
    **{
        ("sluicegate.kafka.client.internals", name): "aiokafka has no public twin of what it does"
        for name in (
            "_DefaultRecordBatchPy",
            "_DefaultRecordPy",
            "_MemoryRecordsPy",
            "_check_crcs",
            "_client",
            "_coordination_task",
            "_coordinator",
            "_create_fetch_waiter",
            "_records",
            "_do_commit_offsets",
            "_do_fetch_commit_offsets",
            "_fetch_max_wait_ms",
            "_fetcher",
            "_isolation_level",
            "_last_action",
            "_max_partition_fetch_bytes",
            "_request_timeout",
            "_subscription",
        )
    },
    **{
        (
            "sluicegate.kafka.confluent.errors",
            f"_{name}",
        ): "a code of librdkafka's own, public"
        for name in (
            "AUTO_OFFSET_RESET",
            "LOG_TRUNCATION",
            "PARTITION_EOF",
            "UNSUPPORTED_FEATURE",
        )
    },
    ("sluicegate.batcher.batcher", "_thread_id"): "its public twins take a call for each item",
    ("sluicegate.testing.clock", "_log_destroy_pending"): "a hanging task stays on purpose",
}

# Attributes of any object that one module alone writes.
SPECIAL = {
    "__cause__": "sluicegate._core.classify",
    "__init__": "sluicegate._core.keywords",
    "__module__": "sluicegate._core.public",
    "__signature__": "sluicegate._core.keywords",
    "summary": "sluicegate._core.classify",
    "retry_after": "sluicegate._core.classify",
}

# Attributes that are public in spite of their underscore.
UNDERSCORED = {"_replace": "a named tuple's, documented"}

# Literal names that are probed although a class of ours has them too: why, and where.
PROBES = {
    "an error or a value of a client library": {
        ("sluicegate.postgres.client.errors", "context"),
        ("sluicegate.postgres.client.errors", "message"),
        ("sluicegate._core.arrow", "value"),
        ("sluicegate._core.arrow", "values"),
        ("sluicegate._core.classify", "status"),
        ("sluicegate._core.classify", "status_code"),
        ("sluicegate._core.delivery.pacing", "retry_after"),
        ("sluicegate.http.errors", "status_code"),
        ("sluicegate.http.secrets", "auth"),
    },
    "an argument of the user's, which is checked": {
        ("sluicegate._core.stacking", "write"),
        ("sluicegate._core.stacking", "write"),
        ("sluicegate._core.checks", "call_at"),
        ("sluicegate.batcher.setup", "on_flushed"),
        ("sluicegate.cli.named", "write"),
        ("sluicegate.retry.retry", "withdraw"),
        ("sluicegate.sinks.fan_out", "write"),
        ("sluicegate.http.client", "aclose"),
        ("sluicegate.http.client", "stream"),
        ("sluicegate.http.config", "aclose"),
        ("sluicegate.http.config", "close"),
        ("sluicegate.testing.conformance.sinks", "capabilities"),
        ("sluicegate.testing.conformance.sinks", "classify"),
    },
    "an optional member of a sink, for which this is the one place that looks": {
        ("sluicegate._core.sink", "capabilities"),
        ("sluicegate._core.sink", "classify"),
        ("sluicegate._core.sink", "inner"),
        ("sluicegate._core.sink", "inners"),
    },
}


@dataclass(frozen=True)
class Scope:
    """The meaning of a function's local names: `own` objects, and objects `made` here."""

    kind: str | None = None
    own: frozenset[str] = frozenset()
    method: Function | None = None

    @cached_property
    def made(self) -> frozenset[str]:
        return _made(self.method, self.kind, self.own) if self.method else frozenset()


@cache
def _scoped(text: str) -> list[tuple[ast.Attribute | ast.Call, Scope]]:
    """Each attribute and call of a module, and the function around it: walked once for all
    rules.
    """
    found: list[tuple[ast.Attribute | ast.Call, Scope]] = []
    ahead: list[tuple[ast.AST, Scope]] = [(tree(text), Scope())]
    while ahead:
        node, scope = ahead.pop()
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.Attribute | ast.Call):
                found.append((child, scope))
            elif isinstance(child, ast.ClassDef):
                inner = Scope(child.name)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = _scope_of(child, scope, is_method=isinstance(node, ast.ClassDef))
            ahead.append((child, inner))
    return found


SETTERS = {"setattr", "delattr", "object.__setattr__", "object.__delattr__"}


def foreign_assignments(known: Sources) -> list[str]:
    found: list[str] = []
    used: set[tuple[str, str]] = set()
    owners = {module for module, _ in NODES}
    for module in known:
        owned = {
            name: kind.name
            for kind in (classes(known[module]) if module in owners else ())
            if (module, kind.name) in NODES
            for name in attributes(kind)
        }
        for line, written, name in _writes(known[module]):
            if name in owned:
                used.add((module, owned[name]))
            elif (module, name) not in STRANGERS and SPECIAL.get(name) != module:
                found.append(f"{module}:{line}: assigns {written}")
    used |= {(module, name) for module, name in STRANGERS if name in known.get(module, "")}
    return found + _unused([*NODES, *STRANGERS], used, known)


def _unused(listed: list[tuple[str, str]], used: set[tuple[str, str]], known: Sources) -> list[str]:
    return [
        f"{module}: the exception for {name} is not needed"
        for module, name in listed
        if module in known and (module, name) not in used
    ]


def _writes(text: str) -> Iterator[tuple[int, str, str]]:
    """Each assignment of an attribute of another object: line, text, attribute."""
    for node, scope in _scoped(text):
        target, name = _written(node)
        if target is not None and not (
            isinstance(target, ast.Name) and (target.id in scope.own or target.id in scope.made)
        ):
            yield target.lineno, f"{ast.unparse(target)}.{name}", name


def _written(node: ast.AST) -> tuple[ast.expr | None, str]:
    """The object and the attribute that a node writes, if any."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
        return node.value, node.attr
    if isinstance(node, ast.Call) and len(node.args) > 1 and dotted(node.func) in SETTERS:
        literal = node.args[1]
        name = literal.value if isinstance(literal, ast.Constant) else ast.unparse(literal)
        return node.args[0], str(name)
    return None, ""


def _scope_of(function: Function, outer: Scope, *, is_method: bool) -> Scope:
    if not is_method:
        return Scope(outer.kind, outer.own)
    arguments = [*function.args.posonlyargs, *function.args.args]
    own = (
        frozenset({arguments[0].arg})
        if arguments and "staticmethod" not in decorators(function)
        else frozenset[str]()
    )
    return Scope(outer.kind, own, function)


def _made(function: Function, kind: str | None, own: frozenset[str]) -> frozenset[str]:
    """The local names that are bound only to an instance created by this method."""
    makers = {f"{kind}", f"{kind}.__new__", "super().__new__", "object.__new__"}
    for name in own:
        makers |= {name, f"{name}.__new__", f"type({name})"}
    copies = {f"{maker}({name})" for maker in ("copy", "copy.copy", "replace") for name in own}
    fresh: set[str] = set()
    other: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets: list[ast.expr] = (
                [*node.targets] if isinstance(node, ast.Assign) else [node.target]
            )
            value = node.value
            is_made = isinstance(value, ast.Call) and (
                ast.unparse(value.func).partition("[")[0] in makers or ast.unparse(value) in copies
            )
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            fresh |= names if is_made else set()
            other |= set() if is_made else _bound(targets)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension | ast.NamedExpr):
            other |= _bound([node.target])
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            other |= _bound([node.optional_vars])
    arguments = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    return frozenset(fresh - other - arguments)


def _bound(targets: list[ast.expr]) -> set[str]:
    nodes = chain.from_iterable(ast.walk(target) for target in targets)
    return {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def private_reaches(known: Sources) -> list[str]:
    found = [
        f"{edge.source}:{edge.line}: imports the private {edge.name}"
        for edge in edges(known)
        if _is_private(edge.name or "") and edge.target(known) == edge.module
    ]
    for module in known:
        allowed = UNDERSCORED.keys() | _declared(known[module])
        found += [
            f"{module}:{line}: reaches {reached}"
            for line, reached, name in _reaches(known[module])
            if name not in allowed and (module, name) not in STRANGERS
        ]
    return found


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@cache
def _declared(text: str) -> frozenset[str]:
    """The attributes and methods declared by a module's own classes."""
    found: set[str] = set()
    for kind in classes(text):
        found |= attributes(kind)
        found |= {method.name for method in methods(kind)}
        for node in kind.body:
            if isinstance(node, ast.Assign):
                found |= _bound(node.targets)
            elif isinstance(node, ast.AnnAssign):
                found |= _bound([node.target])
    return frozenset(found)


def _reaches(text: str) -> Iterator[tuple[int, str, str]]:
    """Each private attribute of an object other than the method's own."""
    for node, scope in _scoped(text):
        if (
            isinstance(node, ast.Attribute)
            and _is_private(node.attr)
            and dotted(node.value) not in scope.own
            and ast.unparse(node.value) != "super()"
        ):
            yield node.lineno, ast.unparse(node), node.attr


def probes(known: Sources) -> list[str]:
    """`getattr` and `hasattr` with a literal name that a class of the package declares."""
    ours = frozenset[str]().union(*map(_declared, known.values()))
    excused = set().union(*PROBES.values())
    found: list[str] = []
    used: set[tuple[str, str]] = set()
    for module in known:
        for line, name in _probed(known[module]):
            if (module, name) in excused:
                used.add((module, name))
            elif name in ours and not name.startswith("__"):
                found.append(f"{module}:{line}: probes for {name}")
    return found + _unused(sorted(excused), used, known)


def _probed(text: str) -> Iterator[tuple[int, str]]:
    for node in nodes(text):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"getattr", "hasattr"}
            and isinstance(node.args[1], ast.Constant)
            and ast.unparse(node.args[0]) != "self"  # may be half initialized, in `__del__`
        ):
            yield node.lineno, str(node.args[1].value)


RULES: list[Rule] = [foreign_assignments, private_reaches, probes]

_METHOD = "class A:\n    def f(self, other, *rest):\n        "
PLANTED: list[Case] = [
    (foreign_assignments, {"sluicegate.a": _METHOD + "other.x = 1"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "self.y.x = 1"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "other.x += 1"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "other.x: int = 1"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "del other.x"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "self.x, (other.x, y) = 1, (2, 3)"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "for other.x in rest: pass"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "with rest as other.x: pass"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "setattr(other, 'x', 1)"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "object.__setattr__(other, 'x', 1)"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "rest[0].x = 1"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "A.x = 1"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "def g(other): other.x = 1"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "other.__cause__ = self"}),
    (foreign_assignments, {"sluicegate._core.classify": _METHOD + "other.__module__ = self"}),
    (foreign_assignments, {"sluicegate.a": "def f(self): self.x = 1"}),
    (foreign_assignments, {"sluicegate.a": "def f():\n    made = B()\n    made.x = 1"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "made = B()\n        made.x = 1"}),
    (
        foreign_assignments,
        {"sluicegate.a": _METHOD + "made = A()\n        made = other\n        made.x = 1"},
    ),
    (
        foreign_assignments,
        {"sluicegate.a": "class A:\n    @staticmethod\n    def f(other): other.x = 1"},
    ),
    (private_reaches, {"sluicegate.a": _METHOD + "return other._x"}),
    (private_reaches, {"sluicegate.a": _METHOD + "return self.y._x()"}),
    (private_reaches, {"sluicegate.a": "from .b import _x", "sluicegate.b": "_x = 1"}),
    (private_reaches, {"sluicegate.a": "from . import b\nb._x()", "sluicegate.b": "def _x(): ..."}),
    (
        private_reaches,
        {
            "sluicegate.a": "class A:\n    def __init__(self): self._x = 1",
            "sluicegate.b": "def f(a): return a._x",
        },
    ),
    (
        probes,
        {
            "sluicegate.a": "class A:\n    limit: int",
            "sluicegate.b": "def f(a): return getattr(a, 'limit', None)",
        },
    ),
    (
        probes,
        {"sluicegate.a": "class A:\n    def f(self): ...\ndef g(a): return hasattr(a, 'f')"},
    ),
]
HARMLESS: list[Case] = [
    (foreign_assignments, {"sluicegate.a": _METHOD + "self.x = 1"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "def g(): self.x = 1"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "other.x[0] = 1"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "object.__setattr__(self, 'x', 1)"}),
    (foreign_assignments, {"sluicegate.a": _METHOD + "made = A(1)\n        made.x = 1"}),
    (
        foreign_assignments,
        {
            "sluicegate.a": "class A:\n    def __new__(cls):\n        made = super().__new__(cls)\n"
            "        made.x = 1"
        },
    ),
    (
        foreign_assignments,
        {
            "sluicegate.a": "class A:\n    @classmethod\n    def f(cls):\n        made = cls()\n"
            "        made.x = 1\n        cls.y = 1"
        },
    ),
    (foreign_assignments, {"sluicegate._core.classify": "def f(e, c): e.__cause__ = c"}),
    (
        private_reaches,
        {"sluicegate.a": "class A:\n    def f(self, other):\n        self._x = other._x"},
    ),
    (private_reaches, {"sluicegate.a": _METHOD + "return super()._x()"}),
    (private_reaches, {"sluicegate.a": _METHOD + "return other._replace(a=1)"}),
    (private_reaches, {"sluicegate.a": "from . import _b", "sluicegate._b": ""}),
    (
        probes,
        {"sluicegate.a": "class A:\n    limit: int\ndef f(e): return getattr(e, 'sqlstate', None)"},
    ),
    (probes, {"sluicegate.a": _METHOD + "return [getattr(self, name) for name in rest]"}),
    (probes, {"sluicegate.a": _METHOD + "self.x = getattr(self, 'x', None)"}),
]
