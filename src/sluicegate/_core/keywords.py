"""Shared keyword options, defined once; and errors for unknown arguments, with the accepted ones.

A TypedDict names the options and their types, and one function holds the defaults. A function that
declares `**options: Unpack[TheTypedDict]` passes them on. Type checkers see each keyword by name,
and `takes` shows them in the run-time signature. `known_arguments` checks the calls of a class
without such options.
"""

from __future__ import annotations

import inspect
import sys
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ClassT = TypeVar("ClassT", bound=type)
FunctionT = TypeVar("FunctionT", bound="Callable[..., Any]")

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def takes(
    options: type,
    defaults_of: Callable[..., object],
    *,
    before: Mapping[str, Sequence[str]] | None = None,
) -> Callable[[FunctionT], FunctionT]:
    """Show the shared options in the signature of a function with `**options`, and refuse others.

    Args:
        options: the TypedDict of the options; its annotations are shown as written.
        defaults_of: the function (or dataclass) that has each option as a keyword, with its
            default. An option without a default there is required.
        before: options to show before one of the function's own keywords; all others follow them.
    """
    shared = _parameters(options, defaults_of)

    def decorate(function: FunctionT) -> FunctionT:
        signature = _signature(function, shared, before or {})
        checked = _checked(function, tuple(signature.parameters)[1:], {})
        checked.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect.signature
        return cast("FunctionT", checked)

    return decorate


def known_arguments(*, access: type | None = None) -> Callable[[ClassT], ClassT]:
    """Make a class refuse unknown arguments with a `ConfigError` that names those it takes.

    The arguments of `access`, a value that its first argument may be, are named as such. A class
    that passes other arguments to a client refuses none.
    """
    elsewhere = (
        {}
        if access is None
        else dict.fromkeys(inspect.signature(access).parameters, access.__name__)
    )

    def decorate(kind: ClassT) -> ClassT:
        init = kind.__init__  # type: ignore[misc]  # of this very class
        code = inspect.unwrap(init).__code__
        if not code.co_flags & inspect.CO_VARKEYWORDS:
            known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
            kind.__init__ = _checked(init, known, elsewhere)  # type: ignore[misc]  # of this class
        return kind

    return decorate


def _checked(
    function: Callable[..., Any], known: Sequence[str], elsewhere: Mapping[str, str]
) -> Callable[..., Any]:
    """Refuse unknown keywords, and more arguments without a name than the function has."""
    code = inspect.unwrap(function).__code__
    most = sys.maxsize if code.co_flags & inspect.CO_VARARGS else code.co_argcount - 1

    @wraps(function)
    def checked(self: object, *args: Any, **keywords: Any) -> Any:
        owner = type(self).__name__
        if len(args) > most:
            taken = f"takes {' and '.join(known[:most]) or 'nothing'} without a name"
            example = f"as in {owner}({known[most]}=...)" if most < len(known) else "and no others"
            raise ConfigError(f"{owner} {taken}; name the others, {example}")
        for name in keywords:
            if name not in known:
                rule = f"{owner} has no such argument; it takes {', '.join(known)}"
                if name in elsewhere:
                    rule = f"is an argument of {elsewhere[name]}, which may be the first argument"
                raise ConfigError(f"{name}=...: {rule}")
        return function(self, *args, **keywords)

    return checked


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
) -> inspect.Signature:
    signature = inspect.signature(function)
    early = {name for names in before.values() for name in names}
    shown: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            shown += [*(shared[option] for option in before.get(name, ())), parameter]
    shown += [parameter for name, parameter in shared.items() if name not in early]
    return signature.replace(parameters=shown)
