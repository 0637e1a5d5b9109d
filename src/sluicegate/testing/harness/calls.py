"""The calls of a handler, recorded by a wrapper that changes nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..._core.clock import Clock
    from ...consumer.lanes.message import Message


@dataclass(slots=True)
class HandlerCall:
    """One call of a handler. Times are the clock's, in seconds."""

    ids: tuple[object, ...]
    """The id of its message, or the ids of the messages of its batch."""
    attempt: int
    """The attempt of its (first) message, from 1."""
    started: float
    ended: float | None = None
    """The end; `None` while it runs."""
    result: object = None
    error: BaseException | None = None
    """The exception that it raised, including a cancellation."""

    def returns(self, result: object) -> object:
        """Note a result, and return it."""
        self.result = result
        return result

    def ends(self, now: float, error: BaseException | None) -> None:
        """Note the end."""
        self.ended, self.error = now, error


class Calls:
    """The calls of one run, in the order of their starts."""

    def __init__(self, clock: Clock, id_of: Callable[[Message], object]) -> None:
        self.all: list[HandlerCall] = []
        self.ended: list[object] = []
        """The ids of ended calls, in the order of their ends, with repeats."""
        self._clock = clock
        self._id_of = id_of

    def recorded(self, handler: Callable[[Any], Awaitable[object]]) -> Callable[[Any], Any]:
        """Wrap a handler of a message or of a list of messages; record every call."""

        async def call(given: Message | list[Message]) -> object:
            messages = given if isinstance(given, list) else [given]
            ids = tuple(map(self._id_of, messages))
            record = HandlerCall(ids, messages[0].attempt, self._clock.now())
            self.all.append(record)
            error: BaseException | None = None
            try:
                return record.returns(await handler(given))
            except BaseException as raised:
                error = raised
                raise
            finally:
                record.ends(self._clock.now(), error)
                self.ended += ids

        return call
