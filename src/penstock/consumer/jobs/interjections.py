"""Work in the order of a partition that no record asks for: now, or from time to time.

1. An interjection runs in a turn of its partition, in front of what waits, never beside a handler or a
   finaliser. It sees the partition's store.
2. A periodic one runs every `every` seconds, give or take `jitter`, in each partition of this process. The
   next time is counted from its completion; one that returns `Incomplete` is complete when its finaliser
   says so.
3. One that raises is logged, and runs again at its next time. It is no event: it is not tried again before
   that, makes no dead letter, and moves no position.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.errors import PenstockError
from ..._core.source import Record
from ..message import Message
from .calling import as_function

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from datetime import timedelta

    from ..claim import Claim
    from .context import EventContext


class NotAssigned(PenstockError):
    """The partition is not this process's."""


class Interjector:
    """Periodic work in the order of each partition.

        async def retry_failed(context):
            for key, item in context.store.range("failed/", limit=100):
                ...

        Interjector(retry_failed, every=1.0, jitter=0.1)

    Args:
        function: a function of an `EventContext` whose message is the interjection, async, or plain to run
            in a thread. Returns `None`, or `Incomplete` as a handler does.
        every: seconds from a completion to the next time.
        jitter: seconds by which each time is earlier or later, at random.
        seed: of that randomness; default: another one each time.

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
        self._every = checks.seconds("every", every)
        self._jitter = checks.seconds("jitter", jitter, zero=True)
        if self._jitter > self._every:
            rule = f"must be at most every, {self._every:g} s"
            raise checks.bad("jitter", jitter, rule)
        self._random = Random(seed)

    def wait(self) -> float:
        """Seconds until the next time."""
        return self._every + self._random.uniform(-self._jitter, self._jitter)


class Interjection(Message):
    """An interjection in its lane: a message without a record."""

    __slots__ = ("done",)

    def __init__(self, claim: Claim, done: asyncio.Future[None]) -> None:
        topic, partition = claim.partition
        super().__init__(None, 0, Record(topic, partition, -1), claim, -1)
        self.done = done

    @property
    def coordinates(self) -> str:
        """It has no offset."""
        return f"an interjection in {self.claim.partition}"

    @property
    def is_unparked(self) -> bool:
        """It is no record of the park store."""
        return False

    def completed(self, error: BaseException | None = None) -> None:
        """Note its end."""
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)

    def __repr__(self) -> str:
        return f"Interjection({self.claim.partition})"
