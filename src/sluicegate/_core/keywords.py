"""Shared keyword options, defined once; and errors for unknown arguments, with the accepted ones.

A TypedDict names the options and their types, and one function holds the defaults. A function that
declares `**options: Unpack[TheTypedDict]` passes them on. Type checkers see each keyword by name,
and `takes` shows them in the run-time signature. `known_arguments` checks the calls of a class
without such options.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .checks import bad, shown
from .errors import ConfigError
from .sink import SinkDecorator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

ClassT = TypeVar("ClassT", bound=type)
FunctionT = TypeVar("FunctionT", bound="Callable[..., Any]")

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def takes(
    options: type,
    defaults_of: Callable[..., object],
    *,
    before: Mapping[str, Sequence[str]] | None = None,
    rest: str | None = None,
) -> Callable[[FunctionT], FunctionT]:
    """Show the shared options in the signature of a function with `**options`.

    Args:
        options: the TypedDict of the options; its annotations are shown as written.
        defaults_of: the function (or dataclass) that has each option as a keyword, with its
            default. An option without a default there is required.
        before: options to show before one of the function's own keywords; all others follow them.
        rest: the name of a `**rest: Never` that ends the signature: unknown keywords reach the
            function, which refuses them itself. Default: they raise `ConfigError`.
    """
    shared = _parameters(options, defaults_of)

    def decorate(function: FunctionT) -> FunctionT:
        signature = _signature(function, shared, before or {}, rest)
        known = tuple(signature.parameters)[1:]
        most = function.__code__.co_argcount - 1

        @wraps(function)
        def checked(self: object, *args: Any, **keywords: Any) -> Any:
            if len(args) > most:
                raise _unnamed(type(self).__name__, args, known, most)
            for name, value in keywords.items() if rest is None else ():
                if name not in known:
                    near = nearest(name, known)
                    raise unknown_argument(type(self).__name__, name, value, known, near)
            return function(self, *args, **keywords)

        checked.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect.signature
        return cast("FunctionT", checked)

    return decorate


def known_arguments(
    *, takes_sink: bool = False, access: type | None = None
) -> Callable[[ClassT], ClassT]:
    """Make a class refuse unknown arguments with a `ConfigError` that names those it takes.

    The arguments of `access`, a value that its first argument may be, are named as such.

    A decorator also refuses a sink as an argument, unless it `takes_sink`. A class that passes
    other arguments to a client refuses only those that resemble a required argument which is not
    given.
    """

    def decorate(kind: ClassT) -> ClassT:
        init = kind.__init__  # type: ignore[misc]  # of this very class
        function = inspect.unwrap(init)
        code = function.__code__
        known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        required = set(known[code.co_argcount - 1 :]) - set(function.__kwdefaults__ or ())
        has_client = bool(code.co_flags & inspect.CO_VARKEYWORDS)
        most = sys.maxsize if code.co_flags & inspect.CO_VARARGS else code.co_argcount - 1
        wraps_sinks = issubclass(kind, SinkDecorator) and not takes_sink
        elsewhere = () if access is None else inspect.signature(access).parameters
        place = "" if access is None else _place_of(access, function)

        @wraps(init)
        def checked(self: object, *args: Any, **keywords: Any) -> None:
            if wraps_sinks and args and _is_like_a_sink(args[0]):
                call = f"stack(sink, {kind.__name__}(...))"
                rule = f"is a sink, which {kind.__name__} does not take; write {call}"
                raise ConfigError(f"{shown(args[0])} {rule}")
            if len(args) > most:
                raise _unnamed(kind.__name__, args, known, most)
            wanted = required - keywords.keys() if has_client else known
            for name, value in keywords.items():
                if name in known:
                    continue
                if access is not None and name in elsewhere:
                    raise _argument_of(access, f"{kind.__name__}({place}", name)
                near = nearest(name, wanted)
                if near is not None or not has_client:
                    raise unknown_argument(kind.__name__, name, value, known, near)
            init(self, *args, **keywords)

        kind.__init__ = checked  # type: ignore[misc]  # of this very class
        return kind

    return decorate


def unknown_argument(
    owner: str, name: str, value: object, known: Sequence[str], near: str | None
) -> ConfigError:
    """Return the error for a keyword that `owner` does not have; `near` is the suggestion."""
    takes = f"{owner} has no such argument; it takes {', '.join(known)}"
    rule = takes if near is None else f"{takes}; did you mean {near}?"
    is_safe = value is None or isinstance(value, (bool, int, float))  # hides passwords
    return bad(name, value, rule) if is_safe else ConfigError(f"{name}=...: {rule}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of the `known` names that is nearest to `name`, if one is near."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def _unnamed(owner: str, args: Sequence[object], known: Sequence[str], most: int) -> ConfigError:
    """Return the error for too many positional arguments."""
    first = args[most]
    if isinstance(first, SinkDecorator):
        call = f"{owner}(stack(sink, {type(first).__name__}(...)))"
        return ConfigError(f"{shown(first)} is a decorator of the sink; write {call}")
    allowed = " and ".join(known[:most])
    taken = f"takes only {allowed} without a name" if most else "takes no argument without a name"
    named = next((n for n in known[most:] if n == type(first).__name__.lower()), known[most])
    return ConfigError(f"{owner} {taken}; name the others, as in {owner}({named}=...)")


def _place_of(access: type, function: Callable[..., object]) -> str:
    """Return the text before the access in a call: nothing, or the name of its argument."""
    for name, each in inspect.signature(function).parameters.items():
        if access.__name__ in str(each.annotation):
            return f"..., {name}=" if each.kind is _KEYWORD else ""
    return ""


def _argument_of(access: type, before: str, name: str) -> ConfigError:
    call = f"{before}{access.__name__}(..., {name}=...), ...)"
    return ConfigError(f"{name}=...: is an argument of {access.__name__}; write {call}")


def _is_like_a_sink(value: object) -> bool:
    return callable(getattr(value, "write", None)) or inspect.isroutine(value)


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
