"""The messages that a handler takes, by the type hint of its first parameter.

1. A message class is a dataclass, a pydantic model, or any class with a `__type__`. A handler of a
   union takes the messages of each class in it.
2. `Envelope[OrderPlaced]` takes the same messages as `OrderPlaced`, and adds the `Message` to the
   value. `Message` itself takes the messages of every class without a handler.
3. Only the hint of the first parameter is resolved: others may exist for type checkers only.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import partial
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from .._core.checks import bad
from .message import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

_RULE = (
    "must be a message class (a dataclass, a pydantic model, or a class with `__type__`), "
    "Envelope[...] of one, a union of these, or Message"
)
_FIRST = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Envelope(Generic[T]):
    """A decoded value with its message."""

    value: T
    message: Message


class Wanted(NamedTuple):
    """The argument of a handler for messages of one class."""

    kind: type[Any]
    """The message class; `Message` for any class."""
    in_envelope: bool = False


class Signature(NamedTuple):
    """The parameters of a handler."""

    wanted: tuple[Wanted, ...]
    extra: tuple[str, ...]
    """The other parameters without a default."""


def signature_of(handler: Callable[..., object]) -> Signature:
    """Read the hints of a handler. Raises `ConfigError` if they do not name message classes."""
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError, NameError) as error:
        raise bad("handler", handler, f"has no signature that can be read ({error})") from error
    if not parameters or parameters[0].kind not in _FIRST:
        raise bad("handler", handler, "must take the message as its first parameter")
    first, *others = parameters
    if first.annotation is first.empty:
        told = f"needs a type hint: its first parameter {first.name!r} {_RULE}"
        raise bad("handler", handler, told)
    hint = _resolved(handler, first)
    wanted = tuple(dict.fromkeys(_wanted(handler, first.name, hint)))
    if len(wanted) > 1 and any(each.kind is Message for each in wanted):
        raise bad(
            "handler", handler, "takes Message, which stands for any class and cannot be in a union"
        )
    extra = [each.name for each in others if each.default is each.empty and each.kind not in _REST]
    return Signature(wanted, tuple(extra))


def _resolved(handler: Callable[..., object], parameter: inspect.Parameter) -> object:
    """Return the type of a parameter, even if its hint is a string."""
    holder = type("Holder", (), {"__annotations__": {"hint": parameter.annotation}})
    try:
        return get_type_hints(holder, _globals_of(handler))["hint"]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        rule = (
            f"the hint {parameter.annotation!r} of {parameter.name!r} cannot be resolved ({error}): "
            "import or define its classes at the top of the module, not under TYPE_CHECKING"
        )
        raise bad("handler", handler, rule) from error


def _globals_of(handler: object) -> dict[str, Any]:
    while isinstance(handler, partial):
        handler = cast("partial[object]", handler).func
    function: Any = inspect.unwrap(cast("Callable[..., object]", handler))
    if not hasattr(function, "__globals__") and not inspect.ismethod(function):
        function = type(function).__call__  # an object with `__call__`
    return dict(getattr(inspect.unwrap(function), "__globals__", {}))


def _wanted(
    handler: object, name: str, hint: Any, *, in_envelope: bool = False
) -> Iterator[Wanted]:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        for each in get_args(hint):
            yield from _wanted(handler, name, each, in_envelope=in_envelope)
    elif origin is Envelope and not in_envelope:
        yield from _wanted(handler, name, get_args(hint)[0], in_envelope=True)
    elif hint is Message and not in_envelope:
        yield Wanted(Message)
    elif _is_message_class(hint):
        yield Wanted(hint, in_envelope)
    else:
        told = getattr(hint, "__qualname__", repr(hint))
        raise bad("handler", handler, f"takes {told} as {name!r}, which {_RULE}")


def _is_message_class(hint: object) -> bool:
    if not inspect.isclass(hint) or hint is Envelope:
        return False
    return is_dataclass(hint) or _is_model(hint) or hasattr(hint, "__type__")


def _is_model(kind: object) -> bool:
    """Return whether it is a pydantic model, without importing pydantic."""
    return hasattr(kind, "model_validate_json")


def type_name(kind: type[Any]) -> str:
    """Return the type name of a message class: its own `__type__`, or its name."""
    name: str = vars(kind).get("__type__", kind.__name__)
    return name


def subclasses_of(kind: type[Any]) -> Iterator[type[Any]]:
    """Return all subclasses; if two have the same name, the older one comes first."""
    for each in kind.__subclasses__():
        yield each
        yield from subclasses_of(each)


def decode_json(kind: type[Any], value: object) -> object:
    """Create an instance of a message class from a JSON object, as text or already decoded.

    A pydantic model validates it. Any other class is called with its members as keywords.
    """
    if isinstance(value, kind):
        return value
    model: Any = kind if _is_model(kind) else None
    if isinstance(value, (str, bytes, bytearray)):
        if model is not None:
            return model.model_validate_json(value)
        value = json.loads(value)
    if model is not None:
        return model.model_validate(value)
    if not isinstance(value, Mapping):
        raise TypeError(f"{kind.__qualname__} needs a JSON object, not other JSON")
    return kind(**cast("Mapping[str, Any]", value))
