"""Reports of a handler's turns to the observers that request them.

Without such an observer the handler is called directly.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from .._core.observer import HandlerEnd
from .results import Ack, Incomplete, Manual, Nak, Skip, Terminate, ToDeadLetter, reason_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from .._core.observer import ConsumerObserver, HandlerOutcome, HandlerWatch
    from .commons import Commons

    Ends = list[tuple[ConsumerObserver, Callable[[HandlerEnd], None]]]


def observed(
    handler: Callable[[Any], Awaitable[object]], commons: Commons, *, is_batch: bool = False
) -> Callable[[Any], Awaitable[object]]:
    """Return a handler that reports its turns; without an interested observer, the handler
    itself.
    """
    observers, name = commons.observers, commons.name
    watches: list[tuple[ConsumerObserver, HandlerWatch]] = []
    for observer in observers:
        watch = observers.ask(observer, partial(observer.handling, name, is_batch=is_batch))
        if watch is not None:
            watches.append((observer, watch))
    if not watches:
        return handler
    return ObservedHandler(handler, watches, commons, is_batch=is_batch)


class ObservedHandler:
    """A handler of messages or batches, and the observers of its turns."""

    def __init__(
        self,
        handler: Callable[[Any], Awaitable[object]],
        watches: Sequence[tuple[ConsumerObserver, HandlerWatch]],
        commons: Commons,
        *,
        is_batch: bool,
    ) -> None:
        self._handler = handler
        self._watches = watches
        self._observers = commons.observers
        self._clock = commons.clock
        self._is_batch = is_batch

    async def __call__(self, handled: Any) -> object:
        """Call the handler; report its turn."""
        began = self._clock.now()
        ends = self._begin(handled if self._is_batch else [handled])
        try:
            result = await self._handler(handled)
        except BaseException as error:
            self._end(ends, HandlerEnd("error", error, self._clock.now() - began))
            raise
        outcome, failure = outcome_of(result, is_batch=self._is_batch)
        self._end(ends, HandlerEnd(outcome, failure, self._clock.now() - began))
        return result

    def _begin(self, messages: Sequence[Any]) -> Ends:
        ends: Ends = []
        for observer, watch in self._watches:
            end = self._observers.ask(observer, partial(watch, messages))
            if end is not None:
                ends.append((observer, end))
        return ends

    def _end(self, ends: Ends, told: HandlerEnd) -> None:
        for observer, end in reversed(ends):
            self._observers.ask(observer, partial(end, told))

    def __repr__(self) -> str:
        return f"ObservedHandler({self._handler!r})"


def outcome_of(
    result: object, *, is_batch: bool = False
) -> tuple[HandlerOutcome, BaseException | None]:
    """Return the outcome of a handler's result, and its error."""
    if result is None:
        return "ack", None
    if is_batch:
        return _outcome_of_batch(result)
    match result:
        case Skip():
            return "skip", None
        case Ack():
            return "ack", None
        case Nak():
            return "nak", result.error
        case ToDeadLetter():
            return "dead_letter", reason_of(result)
        case Terminate():
            return "terminate", reason_of(result)
        case Manual() | Incomplete():
            return "manual", None
        case _:
            return "invalid", None


def _outcome_of_batch(result: object) -> tuple[HandlerOutcome, BaseException | None]:
    """Return `mixed` with the first error, unless every message is acknowledged."""
    if not isinstance(result, (list, tuple)):
        return "invalid", None
    found = [outcome_of(each) for each in cast("Sequence[object]", result)]
    if all(outcome in {"ack", "skip"} for outcome, _ in found):
        return "ack", None
    return "mixed", next((error for _, error in found if error is not None), None)
