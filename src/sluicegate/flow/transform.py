"""Converts records to rows.

1. A function of a message returns `None` (no row), a list or an iterator (a row for each element),
   or any other value, which is the row itself. Without a function the record is the row.
2. A result such as `Skip()` or `ToDeadLetter("why")` settles the message without rows.
3. A temporary error (unavailable, throttled, a lost connection) is retried in place, according to
   the policy: no later record passes the record in the meantime. Any other error makes the record
   poison, and the other records continue.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from asyncio import gather
from collections.abc import AsyncIterator, Awaitable, Iterator
from functools import lru_cache
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from .._core import checks
from .._core.checks import in_seconds
from .._core.classify import classified
from .._core.delivery.pacing import asked_wait
from .._core.errors import ErrorClass
from .._core.loading import NotLoaded, called
from .._core.logs import for_log, log_safely
from .._core.runtime.cuts import is_cut
from .._core.runtime.loops import Exit
from ..consumer.handling.results import (
    Ack,
    Manual,
    Nak,
    ResultTypeError,
    Terminate,
    ToDeadLetter,
    of_raised,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .._core.retry_policy import RetryPolicy
    from ..consumer.lanes.message import Message
    from ..consumer.run import Run

logger = logging.getLogger("sluicegate.flow")

LEAST, MOST = 50, 500
"""The bounds for the number of messages to convert before other tasks run, such as the next step of
a write.
"""
TURN = 0.002
"""The time in seconds that a plain function should take for them."""

Transform: TypeAlias = "Callable[[Message], object] | Callable[[Message], Awaitable[object]]"
Transformed: TypeAlias = "list[Any] | Ack | ToDeadLetter | Terminate"
"""The rows of a record, or the result that settles it without rows."""


_PASSING = frozenset(
    {
        ErrorClass.TRANSIENT,
        ErrorClass.DEADLOCK,
        ErrorClass.UNAVAILABLE,
        ErrorClass.REFUSED,
        ErrorClass.THROTTLE,
    }
)


_RESULTS = (Ack, ToDeadLetter, Terminate)
_NO_ROWS = (Nak, Manual, AsyncIterator)
"""Types that are neither a row nor a result of a transform."""
_LOOKED_AT = (NoneType, list, Iterator, Awaitable, *_RESULTS, *_NO_ROWS)
"""Types of answers that are not simply the row itself."""
_NO_ROW = (
    "the transform returned a value of type {}; expected no row, a row, a list or an iterator of rows, Skip(), "
    "ToDeadLetter() or Terminate(); for another attempt, raise TransientError"
)
_RULE = "must be a function of a message that returns no row, a row, or a list of rows"
_AGAIN = "%s: the transform of %s failed (%s); next attempt in %.3g s"


def checked_transform(transform: object) -> Any:
    """Check the function from a message to its rows. Raises `ConfigError`."""
    if transform is None:
        return None
    if inspect.isasyncgenfunction(transform):
        raise checks.bad("transform", transform, f"{_RULE}, not an asynchronous generator")
    if isinstance(transform, type) or not callable(transform) or not checks.accepts(transform, 1):
        raise checks.bad("transform", transform, _RULE)
    return transform


class Transformer:
    """Converts messages to rows, in order."""

    def __init__(self, transform: Any, policy: RetryPolicy, run: Run, *, concurrency: int) -> None:
        self._transform = transform
        self._policy = policy
        self._name = run.name
        self._clock = run.clock
        self.most = MOST if transform is None else LEAST
        if checks.is_async(transform):
            self.most = concurrency
        """Maximum number of messages in one call of `rows_of`. It follows the time of a plain
        function.
        """

    async def rows_of(self, messages: Sequence[Message]) -> list[Transformed]:
        """Return the rows of each message, or the result that settles it; async functions run
        concurrently.

        Suspends if the function does, and between attempts. Raises `SystemExit` and
        `KeyboardInterrupt` of the function.
        """
        transform = self._transform
        if transform is None:
            return [[message.record] for message in messages]
        if checks.is_async(transform):
            return [
                _raise_error(each) for each in await gather(*map(self._insist_or_exit, messages))
            ]
        found: list[Transformed] = []
        began = self._clock.now()
        for message in messages:
            try:
                answer: Any = transform(message)
                is_row = _is_row(type(answer))  # type: ignore[arg-type]  # mypy: no type is hashable
                rows = [answer] if is_row else await rows_of_answer(answer)
            except (Exception, asyncio.CancelledError) as error:
                rows = await self._insist(message, error)
            found.append(rows)
        is_short = self._clock.now() - began < TURN
        self.most = min(2 * self.most, MOST) if is_short else max(self.most // 2, LEAST)
        return found

    async def _insist_or_exit(self, message: Message) -> Transformed | BaseException:
        """Like `_insist`; returns an exit, which would end the loop if a task raised it."""
        try:
            return await self._insist(message)
        except Exit as error:
            return error

    async def _insist(self, message: Message, error: BaseException | None = None) -> Transformed:
        """Retry as long as the error is temporary; `error` is that of the first attempt."""
        tries = counted = 0
        while True:
            if error is None or isinstance(error, NotLoaded):
                try:
                    return await rows_of_answer(await called(self._transform, message))
                except (Exception, asyncio.CancelledError) as raised:
                    error = raised
            error = of_raised(error)
            if is_cut():
                raise error
            kind = classified(error)
            tries, counted = tries + 1, counted + (kind not in self._policy.uncounted)
            if kind not in _PASSING or self._policy.is_over(kind, counted):
                return Terminate(error=error)
            asked = asked_wait(error, in_seconds(self._policy.max_retry_after)) or 0.0
            wait = max(self._policy.backoff(tries, error), asked)
            told = for_log(error)
            log_safely(logger, logging.WARNING, _AGAIN, self._name, message.coordinates, told, wait)
            await self._clock.sleep(wait)
            if message.claim.is_closing:
                return Terminate(error=error)  # left to a later claim
            error = None


def _raise_error(answer: Transformed | BaseException) -> Transformed:
    if isinstance(answer, BaseException):
        raise answer
    return answer


@lru_cache(maxsize=64)
def _is_row(kind: type) -> bool:
    """Whether an answer of this type is the row itself: the fast path."""
    return not issubclass(kind, _LOOKED_AT)


async def rows_of_answer(answer: object) -> Transformed:
    """Return the rows of an answer. Raises the errors of a generator."""
    if inspect.isawaitable(answer):
        answer = await answer
    if answer is None:
        return []
    if isinstance(answer, list):
        return cast("list[Any]", answer)
    if isinstance(answer, Iterator):
        return list(cast("Iterator[Any]", answer))
    if isinstance(answer, _RESULTS):
        return answer
    if isinstance(answer, _NO_ROWS):
        raise ResultTypeError(_NO_ROW.format(type(cast("object", answer)).__name__))
    return [answer]
