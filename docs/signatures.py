"""Show the signatures of the reference as a caller needs them."""  # noqa: INP001  # loaded by its path

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

NAMED = re.compile(r"[A-Z][A-Z0-9_]*")
PRIVATE = re.compile(r"[^'\"]*\b_[A-Za-z]")  # not within a text


class SharedOptions(griffe.Extension):
    """Replaces the parameters of a function decorated with `takes` by its run-time signature."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Called by griffe for each function of the package."""
        if not any(str(decorator.value).startswith("takes(") for decorator in func.decorators):
            return
        shown = inspect.signature(griffe.dynamic_import(func.path)).parameters
        func.parameters = griffe.Parameters(*(_parameter(shown[name]) for name in shown))


class PrivateDefaults(griffe.Extension):
    """Shows a default that is a constant of ours by its value, and one made by private code as `...`."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Called by griffe for each function of the package."""
        for parameter in func.parameters:
            default = str(parameter.default)
            if PRIVATE.match(default):
                parameter.default = "..."
            elif NAMED.fullmatch(default):
                parameter.default = _value(func, default) or parameter.default


def _value(func: griffe.Function, name: str) -> str | None:
    """A number or a text as it is written, `None` for what has no short form."""
    value = getattr(griffe.dynamic_import(func.module.path), name, None)
    return repr(value) if isinstance(value, (str, int, float)) else None


def _parameter(shown: inspect.Parameter) -> griffe.Parameter:
    return griffe.Parameter(
        shown.name,
        annotation=shown.annotation,
        kind=griffe.ParameterKind(shown.kind.description),
        default=None if shown.default is shown.empty else repr(shown.default),
    )
