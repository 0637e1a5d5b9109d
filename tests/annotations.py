"""The names in the annotations of public signatures, and those that are neither exported nor
described in the reference.

Annotations are text, and many of their names are imported for type checkers only; so each name is
looked up in the source of the module that contains it, through its imports. An alias for values
(literals, a union of public types) may stay private, since programs write the values; a class, or
the type of a function that programs write, may not.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.surface import PUBLIC, not_exported

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FunctionType

VARIABLES = ("TypeVar", "ParamSpec", "TypeVarTuple")


class Place(NamedTuple):
    """A name in a module."""

    module: str
    name: str


@cache
def bound(module: str) -> dict[str, Place | ast.expr | None]:
    """The names bound at the top level of a module of the package, including those for type
    checkers only: imported names, assigned expressions, and `None` for classes and functions.
    """
    path = importlib.import_module(module).__file__
    assert path is not None
    found: dict[str, Place | ast.expr | None] = {}
    package = module if Path(path).name == "__init__.py" else module.rpartition(".")[0]
    for node in _top_level(ast.parse(Path(path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                found[alias.asname or alias.name] = Place(source, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name if alias.asname else alias.name.partition(".")[0]
                found[alias.asname or top] = Place(top, "")
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found[node.name] = None
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found[target.id] = node.value
    return found


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    todo = [*tree.body]
    while todo:
        node = todo.pop(0)
        if isinstance(node, (ast.If, ast.Try)):
            todo = [*node.body, *node.orelse, *todo]
        else:
            yield node


@cache
def exported() -> frozenset[Place]:
    """The defining places of all public names, and their public homes; those of the types that
    only the reference describes.
    """
    found = {Place(*each) for each in not_exported()}
    for path in PUBLIC:
        for name in getattr(importlib.import_module(path), "__all__", ()):
            found |= {Place(path, name), *_chain(Place(path, name))}
    return frozenset(found)


def _chain(place: Place) -> Iterator[Place]:
    """The places through which a name is imported, to its definition."""
    while place.module.partition(".")[0] == "sluicegate" and place.name:
        yield place
        known = bound(place.module)
        found = known.get(place.name)
        if not isinstance(found, Place):
            return
        place = found
    yield place


def hidden(annotation: str | ast.expr, module: str) -> set[str]:
    """The package's names in an annotation of this module that are not public."""
    tree = ast.parse(annotation, mode="eval") if isinstance(annotation, str) else annotation
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            continue
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
            found |= _hidden_name(Place(module, node.id))
    return found


def _hidden_name(place: Place) -> set[str]:
    chain = [*_chain(place)]
    last = chain[-1]
    is_ours = last.module.partition(".")[0] == "sluicegate" and last.name
    if not is_ours or any(step in exported() for step in chain):
        return set()
    value = bound(last.module).get(last.name)
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        value = ast.parse(value.value, mode="eval").body
    if isinstance(value, ast.Call) and ast.unparse(value.func) in VARIABLES:
        return set()
    if isinstance(value, ast.expr) and not _is_of_functions(value):
        return hidden(value, last.module)
    return {".".join(last)}


def _is_of_functions(alias: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "Callable" for node in ast.walk(alias))


def signatures() -> Iterator[tuple[str, str, str]]:
    """Each annotation of a public name: its owner, its text, and its module."""
    for path in PUBLIC:
        module = importlib.import_module(path)
        for name in sorted(getattr(module, "__all__", ())):
            thing = getattr(module, name)
            where = f"{path}.{name}"
            if isinstance(thing, type) and thing.__module__.startswith("sluicegate"):
                yield from _of_class(where, thing)
            elif inspect.isfunction(thing):
                yield from _of_function(where, thing)
    for path, name in not_exported():
        thing = getattr(importlib.import_module(path), name)
        if isinstance(thing, type):
            yield from _of_class(f"{path}.{name}", thing)


def _of_class(where: str, kind: type) -> Iterator[tuple[str, str, str]]:
    bases = [base for base in kind.__mro__ if base.__module__.partition(".")[0] == "sluicegate"]
    fields: dict[str, tuple[str, str]] = {}
    for base in reversed(bases):
        home = _classes().get(base, "")
        for name, given in inspect.get_annotations(base).items():
            text = getattr(given, "__forward_arg__", given)  # of a TypedDict
            if not name.startswith("_") and isinstance(text, str) and home:
                fields[name] = text, home
    for name, (text, home) in fields.items():
        yield f"{where}.{name}", text, home
    for name in dict.fromkeys(name for base in bases for name in vars(base)):
        if name.startswith("_") and name not in ("__init__", "__call__"):
            continue
        member = inspect.getattr_static(kind, name)
        inner = getattr(member, "fget", None) or getattr(member, "__func__", member)
        inner = inspect.unwrap(inner) if callable(inner) else inner
        if inspect.isfunction(inner):
            yield from _of_function(f"{where}.{name}", inner)


def _of_function(where: str, function: FunctionType) -> Iterator[tuple[str, str, str]]:
    inner: Any = inspect.unwrap(function)
    home = _module_of(inner.__code__.co_filename)
    for name, text in inner.__annotations__.items():
        if isinstance(text, str) and home:
            yield f"{where}({name})", text, home


@cache
def _classes() -> dict[type, str]:
    """The module of the package that defines each class; `__module__` is its public home
    instead.
    """
    return {
        value: name
        for name, module in [*sys.modules.items()]
        if name.partition(".")[0] == "sluicegate" and getattr(module, "__file__", None)
        for value in [*vars(module).values()]
        if isinstance(value, type) and bound(name).get(value.__name__, value) is None
    }


@cache
def _files() -> dict[str, str]:
    return {
        file: name
        for name, module in sys.modules.items()
        if name.partition(".")[0] == "sluicegate" and (file := getattr(module, "__file__", None))
    }


def _module_of(file: str) -> str:
    return _files().get(file, "")
