"""Work in the order of a partition that is not caused by a record: immediate or periodic.

1. An interjection runs in a turn of its partition, before waiting events, and never concurrently
   with a handler or a finaliser. It can use the partition's store.
2. A periodic interjection runs every `every` seconds, plus or minus `jitter`, in each partition of
   this process. The interval starts at its completion; after `Incomplete`, its finaliser completes
   it.
3. An interjection that raises is logged, and runs again at its next time. It is not an event: it is
   not retried before that, causes no dead letter, and does not move the position.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.errors import SluicegateError
from ..._core.source import Record
from ..handling.handlers import as_function
from ..handling.results import Manual, ResultTypeError
from ..lanes.message import Message
from .state import FAILED

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from datetime import timedelta

    from ..progress.claim import Claim
    from .context import EventContext


class NotAssigned(SluicegateError):
    """The partition is not assigned to this process."""


class Interjector:
    """Periodic work in the order of each partition.

        async def retry_failed(context):
            for key, item in context.store.range("failed/", limit=100):
                ...

        Interjector(retry_failed, every=1.0, jitter=0.1)

    Args:
        function: a function of an `EventContext` whose message is the interjection, async, or plain
            to run in a thread. Returns `None`, or `Incomplete` like a handler. It fails with any
            other result of a handler, as does its finaliser or callback.
        every: seconds from a completion to the next run.
        jitter: maximum number of seconds by which a run is earlier or later, at random; default 0.
        seed: the seed of the randomness; default: a new one each time.

    Raises `ConfigError` for a bad argument.
    """

    def __init__(
        self,
        function: Callable[[EventContext], object],
        *,
        every: float | timedelta,
        jitter: float | timedelta = 0.0,
        seed: int | None = None,
    ) -> None:
        self.call = as_function("function", function, "a context", takes=1)
        self._every = checks.seconds("every", every, usual=checks.LONG_PERIOD)
        self._jitter = checks.seconds("jitter", jitter, zero=True, usual=checks.LONG_PERIOD)
        if self._jitter > self._every:
            rule = f"must be at most every, {self._every:g} s"
            raise checks.bad("jitter", jitter, rule)
        self._random = Random(seed)

    def wait(self) -> float:
        """Return the seconds until the next time."""
        return self._every + self._random.uniform(-self._jitter, self._jitter)


class InterjectionCount:
    """The number of pending interjections, and of those that have ended."""

    def __init__(self) -> None:
        self.inside = 0
        self.ended = 0

    def begin(self, done: asyncio.Future[None]) -> None:
        """Count an interjection until this future is done."""
        self.inside += 1
        done.add_done_callback(self._end)

    def _end(self, done: asyncio.Future[None]) -> None:
        del done
        self.inside -= 1
        self.ended += 1


class Interjection(Message):
    """An interjection in its lane: a message without a record."""

    __slots__ = ("done",)

    def __init__(self, claim: Claim, done: asyncio.Future[None]) -> None:
        topic, partition = claim.partition
        super().__init__(None, 0, Record(topic, partition, -1), claim, -1)
        self.done = done

    @property
    def coordinates(self) -> str:
        """A description, since there is no offset."""
        return f"an interjection in {self.claim.partition}"

    @property
    def is_unparked(self) -> bool:
        """Always false: it does not come from the park store."""
        return False

    def check_result(self, result: object) -> None:
        """Raise `ResultTypeError` for a result that only an event can have."""
        if isinstance(result, (*FAILED, Manual)):
            rule = "it is not an event, and is not retried: return None, or raise the error"
            told = f"{self.coordinates} returned {result!r:.100}; {rule}"
            cause = None if isinstance(result, Manual) else result.error
            raise ResultTypeError(told) from cause

    def complete(self, error: BaseException | None = None) -> None:
        """Set its result."""
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)

    def __repr__(self) -> str:
        return f"Interjection({self.claim.partition})"
