"""Handlers of events, selected by the type hints of their first parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ..._core.checks import bad
from ..hints import signature_of
from ..register import HandlerRegister

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..message import Message
    from ..register import Decoder, Unhandled
    from .context import EventContext

HandlerT = TypeVar("HandlerT", bound="Callable[..., object]")
CONTEXT = "context"


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
        """The type names that have a handler, excluding those of subclasses."""
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
