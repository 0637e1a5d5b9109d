"""Handlers selected by the type hints of their first parameters.

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
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from ..._core import checks
from ..._core.checks import accepts, bad, is_async, shown
from ..lanes.message import Message
from .handlers import InThread, OfOneMessage, as_handler, why_no_function
from .results import DecodeError, NoHandlerError, Skip
from .steps import refuse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from ..jobs.context import EventContext


Decoder: TypeAlias = "Callable[[type[Any], Any], object]"
"""Returns an instance of a message class from a value; plain or async."""
RegisteredCall: TypeAlias = "Callable[[Callable[..., Awaitable[object]], Any, Message], object]"
"""Calls a handler with its argument, for a message; plain or async."""

HandlerT = TypeVar("HandlerT", bound="Callable[..., object]")
Unhandled = Literal["poison", "skip"]
UNHANDLED: tuple[Unhandled, ...] = ("poison", "skip")

_SKIP = Skip()

T = TypeVar("T")
CONTEXT = "context"
_RULE = (
    "must be a message class (a dataclass, a pydantic model, or a class with `__type__`), "
    "Envelope[...] of one, a union of these, or Message"
)
_FIRST = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Registered(NamedTuple):
    """The handler of the messages of one class."""

    wanted: Wanted
    function: Callable[..., object]
    """The function as registered."""
    call: Callable[..., Awaitable[object]]


class HandlerRegister(OfOneMessage):
    """A handler composed of functions, each for the message class that annotates its first
    parameter; pass it to `Consumer.run`.

    Args:
        type_of: the name of the header that contains the type name, as UTF-8 (default `"type"`); or
            a plain function from a message to its type name.
        name_of: a plain function from a message class to its type name. Default: the `__type__` of
            the class itself, else its `__name__`.
        decode: a function of a message class and a value, plain or async, that returns an instance.
            Its exceptions make the message poison (`DecodeError`). Default: the value is a JSON
            object, as text or decoded. A pydantic model validates it, and any other class is called
            with its members as keywords.
        call: called for each message as `call(handler, argument, message)`, to pass more arguments
            or to run code before and after the handler. `handler` is always async, even if a plain
            function was registered. `call` is plain or async, returns the handler's result, and
            runs in the event loop.
        unhandled: the treatment of a message without a handler: `poison` (default) raises
            `NoHandlerError`, without retries and for this message alone; `skip` acknowledges it and
            counts it as `skipped`.

    A handler takes a message class (a dataclass, a pydantic model, or a class with `__type__`), an
    `Envelope` of one, or a union of these; a class includes its subclasses. The handler of
    `Message` takes messages of any other type, undecoded. Raises `ConfigError` for a bad argument.

    Examples:
        >>> import asyncio
        >>> from dataclasses import dataclass
        >>> from sluicegate.consumer import HandlerRegister
        >>> from sluicegate.testing import ConsumerHarness
        >>> @dataclass
        ... class Placed:
        ...     order: int
        >>> handlers = HandlerRegister(type_of="type")
        >>> @handlers.register
        ... async def placed(event: Placed) -> None:
        ...     print("order", event.order)
        >>> harness = ConsumerHarness()
        >>> _ = harness.send({"order": 7}, key="ann", headers=[("type", b"Placed")])
        >>> ran = asyncio.run(harness.run(handlers))
        order 7
    """

    def __init__(
        self,
        *,
        type_of: str | Callable[[Message], object] = "type",
        name_of: Callable[[type[Any]], str] | None = None,
        decode: Decoder | None = None,
        call: RegisteredCall | None = None,
        unhandled: Unhandled = "poison",
    ) -> None:
        self._type_of, self._source = _typed_by(type_of)
        rule = "must be a plain function of a message class"
        self._name_of = checks.optional_function("name_of", name_of, rule) or type_name
        given = "a message class and a value"
        self._decode = _function("decode", decode, given, takes=2) or decode_json
        given = "a handler, its argument and the message"
        self._call = _function("call", call, given, takes=3)
        self._skips = checks.choice("unhandled", unhandled, UNHANDLED) == "skip"
        self._known: dict[str, Registered] = {}
        self._found: dict[str, Registered] = {}
        """Handlers found for subclasses, cached at their first message."""
        self._default: Registered | None = None

    def register(self, handler: HandlerT) -> HandlerT:
        """Add a handler, async or plain (which runs in a thread); return it. Usable as a decorator.

        Raises `ConfigError`, and adds nothing, if the hint of the first parameter is missing or
        does not name a message class, if another handler takes one of its classes, or if there are
        other parameters without a default and there is no `call`.
        """
        signature = signature_of(handler)
        if signature.extra and self._call is None:
            names = ", ".join(signature.extra)
            rule = f"has parameters that nothing provides: {names}; pass call= to the register"
            raise bad("handler", handler, rule)
        call = as_handler(handler) if self._call is None else _in_loop(handler, signature.extra)
        added: dict[str, Registered] = {}
        for wanted in signature.wanted:
            entry = Registered(wanted, handler, call)
            if wanted.kind is Message:
                self._check_default(handler)
                self._default = entry
            else:
                name = self._checked_name(wanted.kind)
                self._check_free(name, entry, {**self._known, **added})
                added[name] = entry
        self._known |= added
        self._found.clear()
        return handler

    @property
    def types(self) -> tuple[str, ...]:
        """The names of the registered message types, without the subclasses that they cover."""
        return tuple(self._known)

    async def __call__(self, message: Message) -> object:
        """Handle a message. Raises `NoHandlerError`, `DecodeError`, and any exception of the
        handler.
        """
        kind = self._type_of(message)
        found = self._handler_of(kind)
        if found is None:
            if self._skips:
                return _SKIP
            raise NoHandlerError(self._unknown(kind))
        argument = await self._argument(found.wanted, message)
        if self._call is None:
            return await found.call(argument)
        answer = self._call(found.call, argument, message)
        return await answer if inspect.isawaitable(answer) else answer

    # -- adding ------------------------------------------------------------------------------------

    def _checked_name(self, kind: type[Any]) -> str:
        name = cast("object", self._name_of(kind))
        if not isinstance(name, str) or not name:
            raise bad(f"type name of {kind.__qualname__}", name, "must be text, not empty")
        return name

    def _check_default(self, handler: object) -> None:
        if self._default is not None:
            raise _overlap(handler, "Message", self._default.function)

    def _check_free(self, name: str, entry: Registered, known: dict[str, Registered]) -> None:
        kind = entry.wanted.kind
        for other_name, other in known.items():
            if other_name == name:
                raise _overlap(entry.function, f"the type {name!r}", other.function)
            is_related = issubclass(kind, other.wanted.kind) or issubclass(other.wanted.kind, kind)
            if is_related and other.function is not entry.function:
                both = f"{kind.__qualname__} and {other.wanted.kind.__qualname__}"
                raise _overlap(
                    entry.function, f"{both}, one a subclass of the other,", other.function
                )

    # -- finding -----------------------------------------------------------------------------------

    def _handler_of(self, kind: object) -> Registered | None:
        if not isinstance(kind, str):
            return self._default
        return self._known.get(kind) or self._found.get(kind) or self._of_subclass(kind)

    def _of_subclass(self, name: str) -> Registered | None:
        found = None
        for entry in self._known.values():
            for kind in subclasses_of(entry.wanted.kind):
                if self._name_of(kind) == name:
                    found = entry._replace(wanted=entry.wanted._replace(kind=kind))
        if found is None:
            return self._default
        self._found[name] = found
        return found

    async def _argument(self, wanted: Wanted, message: Message) -> object:
        kind = wanted.kind
        if kind is Message:
            return message
        try:
            value = self._decode(kind, message.value)
            if inspect.isawaitable(value):
                value = await value
        except Exception as error:
            refuse(DecodeError, f"the value cannot be decoded as {kind.__qualname__}", error)
        return Envelope(value, message) if wanted.in_envelope else value

    def _unknown(self, kind: object) -> str:
        known = ", ".join(map(shown, self._known)) or "none"
        return f"no handler for the type {shown(kind)} by {self._source}; known types: {known}"

    def __repr__(self) -> str:
        return f"HandlerRegister({self._source}, [{', '.join(map(shown, self._known))}])"


def _typed_by(
    type_of: str | Callable[[Message], object],
) -> tuple[Callable[[Message], object], str]:
    """Return the function from a message to its type, and the function's name. Raises
    `ConfigError`.
    """
    if not isinstance(type_of, str):
        rule = "must be the name of a header, or a plain function of a message"
        function = checks.function("type_of", type_of, rule)
        return function, getattr(type_of, "__qualname__", "type_of")
    name = checks.text("type_of", type_of)
    return lambda message: message.header(name), f"the header {name!r}"


def _function(name: str, given: Any, argument: str, *, takes: int) -> Any:
    if given is not None and not (callable(given) and accepts(given, takes)):
        raise bad(name, given, f"must be a function of {argument}")
    return given


def _overlap(handler: object, what: str, other: object) -> Exception:
    return bad("handler", handler, f"overlaps with {shown(other)}: both take {what}")


def _in_loop(
    handler: Callable[..., object], extra: tuple[str, ...]
) -> Callable[..., Awaitable[object]]:
    """Return the async function of a handler that takes these extra arguments. Raises
    `ConfigError`.
    """
    with_extra = partial(handler, **dict.fromkeys(extra))
    if (rule := why_no_function(with_extra, "the message")) is not None:
        raise bad("handler", handler, rule)
    if is_async(handler):
        return cast("Callable[..., Awaitable[object]]", handler)

    async def call(*given: Any, **named: Any) -> object:
        return await InThread(lambda _: handler(*given, **named))(None)

    return call


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


class EventRegister:
    """A handler for `Consumer.run_events` composed of functions, each for the message class that
    annotates its first parameter. The second parameter is named `context`.

        events = EventRegister()

        @events.register
        async def placed(order: Placed, context: EventContext) -> Incomplete:
            return orders.schedule(context, order.customer, order)

        await consumer.run_events(events, jobs=[orders])

    Args:
        type_of: as for `HandlerRegister`: the header or function for the type of a message.
        name_of: as for `HandlerRegister`: a function from a class to its type name.
        decode: as for `HandlerRegister`: a function of a class and a value, which decodes the
            event's value.
        unhandled: as for `HandlerRegister`: the treatment of an event without a handler.

    Raises `ConfigError` for a bad argument.
    """

    def __init__(
        self,
        *,
        type_of: str | Callable[[Message], object] = "type",
        name_of: Callable[[type[Any]], str] | None = None,
        decode: Decoder | None = None,
        unhandled: Unhandled = "poison",
    ) -> None:
        self._contexts: dict[Message, EventContext] = {}
        self._register = HandlerRegister(
            type_of=type_of,
            name_of=name_of,
            decode=decode,
            call=self._called,
            unhandled=unhandled,
        )

    def register(self, handler: HandlerT) -> HandlerT:
        """Add a handler, async or plain (which runs in a thread); return it. Usable as a decorator.

        Raises `ConfigError` like `HandlerRegister.register`, and for a handler without `context`.
        """
        if CONTEXT not in signature_of(handler).extra:
            raise bad("handler", handler, "must have a second parameter that is named context")
        return self._register.register(handler)

    @property
    def types(self) -> tuple[str, ...]:
        """The names of the registered message types, without the subclasses that they cover."""
        return self._register.types

    async def __call__(self, context: EventContext) -> object:
        """Handle an event. Raises `NoHandlerError`, `DecodeError`, and any exception of the
        handler.
        """
        message = context.message
        self._contexts[message] = context
        try:
            return await self._register(message)
        finally:
            del self._contexts[message]

    def _called(
        self, handler: Callable[..., Awaitable[object]], argument: Any, message: Message
    ) -> Awaitable[object]:
        return handler(argument, context=self._contexts[message])

    def __repr__(self) -> str:
        return f"EventRegister({self._register!r})"
