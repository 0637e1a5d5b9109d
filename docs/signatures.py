"""Show in the reference the keywords that a function takes by `_core.keywords.takes`."""  # noqa: INP001  # loaded by its path

from __future__ import annotations

import inspect
from typing import Any

import griffe


class SharedOptions(griffe.Extension):
    """Replaces the parameters of a function decorated with `takes` by its run-time signature."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Called by griffe for each function of the package."""
        if not any(str(decorator.value).startswith("takes(") for decorator in func.decorators):
            return
        shown = inspect.signature(griffe.dynamic_import(func.path)).parameters
        func.parameters = griffe.Parameters(*(_parameter(shown[name]) for name in shown))


def _parameter(shown: inspect.Parameter) -> griffe.Parameter:
    return griffe.Parameter(
        shown.name,
        annotation=shown.annotation,
        kind=griffe.ParameterKind(shown.kind.description),
        default=None if shown.default is shown.empty else repr(shown.default),
    )
