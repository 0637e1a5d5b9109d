"""Show the signatures of the reference as a caller needs them; the source is read, and not imported."""  # noqa: INP001  # loaded by its path

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

import griffe

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMED = re.compile(r"[A-Z][A-Z0-9_]*")
PRIVATE = re.compile(r"[^'\"]*\b_[A-Za-z]")  # not within a text
ARITHMETIC = (ast.Expression, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.Constant)


class Signatures(griffe.Extension):
    """1. The options of a function decorated with `takes` stand in place of `**options`.
    2. A default that is a constant of ours has its value, and one made by private code is `...`.
    """

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called by griffe with a loaded package."""
        for function in _functions(pkg):
            for decorator in function.decorators:
                if str(decorator.value).startswith("takes("):
                    _show_options(function, decorator.value)
        for function in _functions(pkg):
            for parameter in function.parameters:
                parameter.default = _default(function.module, parameter.default)


def _functions(scope: griffe.Object) -> Iterator[griffe.Function]:
    for member in scope.members.values():
        if isinstance(member, griffe.Function):
            yield member
        elif isinstance(member, griffe.Object):
            yield from _functions(member)


def _show_options(function: griffe.Function, takes: Any) -> None:
    """`takes(options, defaults_of, rest=...)`, as `sluicegate._core.keywords` reads it."""
    options, defaults = (_meant(function.module, str(each)) for each in takes.arguments[:2])
    rest = [each.value.strip("'") for each in takes.arguments[2:]]
    kept = [each for each in function.parameters if each.kind.value != "variadic keyword"]
    function.parameters = griffe.Parameters(
        *kept,
        *(
            griffe.Parameter(
                name,
                annotation=option.annotation,
                kind=griffe.ParameterKind.keyword_only,
                default=_default(defaults.module, defaults.parameters[name].default),
            )
            for name, option in options.attributes.items()
        ),
        *(
            griffe.Parameter(each, annotation="Never", kind=griffe.ParameterKind.var_keyword)
            for each in rest
        ),
    )


def _default(module: griffe.Module, default: Any) -> Any:
    text = str(default)
    if PRIVATE.match(text):
        return "..."
    return (_value(module, text) if NAMED.fullmatch(text) else None) or default


def _value(module: griffe.Module, name: str) -> str | None:
    """A number or a text as a literal, `None` for what has no short form."""
    try:
        tree = ast.parse(str(_meant(module, name).value), mode="eval")
    except (KeyError, griffe.AliasResolutionError):  # griffe skips names assigned in a tuple
        return None
    if not all(isinstance(node, ARITHMETIC) for node in ast.walk(tree)):
        return None
    return repr(eval(compile(tree, name, "eval")))  # noqa: S307  # of constants only


def _meant(module: griffe.Module, name: str) -> Any:
    """What a name of a module is, wherever it was defined."""
    member = module.members[name]
    return member.final_target if isinstance(member, griffe.Alias) else member
