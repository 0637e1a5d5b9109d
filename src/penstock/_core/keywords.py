"""Keyword options that several functions share, written once.

A TypedDict names the options and their types, and one function holds the defaults. A function that
declares `**options: Unpack[TheTypedDict]` passes them on; type checkers see each keyword by name,
and `takes` makes the run-time signature show them, too.
"""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

FunctionT = TypeVar("FunctionT", bound="Callable[..., Any]")

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def takes(
    options: type,
    defaults_of: Callable[..., object],
    *,
    before: Mapping[str, Sequence[str]] | None = None,
    rest: str | None = None,
) -> Callable[[FunctionT], FunctionT]:
    """Show the shared options in the signature of a function that takes them as `**options`.

    Args:
        options: the TypedDict of the options; its annotations are shown as written.
        defaults_of: the function (or dataclass) that has each option as a keyword, with its
            default. An option without a default there is required.
        before: options to show before one of the function's own keywords; all others follow them.
        rest: the name of a `**rest: Never` that ends the signature: unknown keywords reach the
            function, which refuses them itself. Default: they raise `TypeError`.
    """
    shared = _parameters(options, defaults_of)

    def decorate(function: FunctionT) -> FunctionT:
        signature = _signature(function, shared, before or {}, rest)
        known = frozenset(signature.parameters)

        @wraps(function)
        def checked(*args: Any, **keywords: Any) -> Any:
            if rest is None and (unknown := [name for name in keywords if name not in known]):
                called = f"{function.__qualname__}()"
                raise TypeError(f"{called} got an unexpected keyword argument {unknown[0]!r}")
            return function(*args, **keywords)

        checked.__signature__ = signature  # type: ignore[attr-defined]  # what inspect.signature reads
        return cast("FunctionT", checked)

    return decorate


def _parameters(options: type, defaults_of: Callable[..., object]) -> dict[str, inspect.Parameter]:
    defaults = inspect.signature(defaults_of).parameters
    shared: dict[str, inspect.Parameter] = {}
    for name, hint in options.__annotations__.items():
        shown, default = getattr(hint, "__forward_arg__", hint), defaults[name].default
        shared[name] = inspect.Parameter(name, _KEYWORD, default=default, annotation=shown)
    return shared


def _signature(
    function: Callable[..., object],
    shared: Mapping[str, inspect.Parameter],
    before: Mapping[str, Sequence[str]],
    rest: str | None,
) -> inspect.Signature:
    signature = inspect.signature(function)
    early = {name for names in before.values() for name in names}
    shown: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            shown += [*(shared[option] for option in before.get(name, ())), parameter]
    shown += [parameter for name, parameter in shared.items() if name not in early]
    if rest is not None:
        shown.append(inspect.Parameter(rest, inspect.Parameter.VAR_KEYWORD, annotation="Never"))
    return signature.replace(parameters=shown)
