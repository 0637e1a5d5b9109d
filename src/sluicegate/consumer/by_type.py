"""One handler per type of record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from .._core import checks
from .._core.checks import bad, shown
from .handlers import OfOneMessage, as_handler
from .results import NoHandlerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .handlers import MessageHandler
    from .message import Message

_TYPE_OF = "must be the name of a header, or a plain function of a message"


def typed_by(
    type_of: str | Callable[[Message], object],
) -> tuple[Callable[[Message], object], str]:
    """Return the function from a message to its type, and the function's name. Raises
    `ConfigError`.
    """
    if not isinstance(type_of, str):
        function = checks.function("type_of", type_of, _TYPE_OF)
        return function, getattr(type_of, "__qualname__", "type_of")
    name = checks.text("type_of", type_of)
    return lambda message: message.header(name), f"the header {name!r}"


class HandlersByType(OfOneMessage):
    """A handler that calls the handler of a message's type.

    Args:
        type_of: the name of the header that contains the type, as UTF-8; or a plain function from a
            message to its type.
        handlers: the handler of each type, async or plain.
        default: the handler of any other type, and of messages without a type.

    Without a default, a message of another type is poison (`NoHandlerError`), without retries and
    for this message alone. To give a handler its own decoding or checks, pass `with_steps(handler,
    decode(...))`. Raises `ConfigError` for a bad argument.
    """

    def __init__(
        self,
        type_of: str | Callable[[Message], object],
        handlers: Mapping[Any, MessageHandler],
        default: MessageHandler | None = None,
    ) -> None:
        self._type_of, self._source = typed_by(type_of)
        if not isinstance(cast("object", handlers), Mapping) or not handlers:
            raise bad("handlers", handlers, "must be a mapping from types to handlers, not empty")
        self._handlers = {
            kind: as_handler(handler, f"handlers[{shown(kind)}]")
            for kind, handler in handlers.items()
        }
        self._default = None if default is None else as_handler(default, "default")

    async def __call__(self, message: Message) -> object:
        """Handle a message. Raises `NoHandlerError`, and any exception of the handler."""
        handler = self._handler_of(self._type_of(message))
        return await handler(message)

    def _handler_of(self, kind: object) -> Callable[[Message], Awaitable[object]]:
        try:
            handler = self._handlers.get(kind, self._default)
        except TypeError:  # a type without a hash
            handler = self._default
        if handler is None:
            known = ", ".join(map(shown, self._handlers))
            told = f"no handler for the type {shown(kind)} by {self._source}; known types: {known}"
            raise NoHandlerError(told)
        return handler

    def __repr__(self) -> str:
        return f"HandlersByType({self._source}, [{', '.join(map(shown, self._handlers))}])"
