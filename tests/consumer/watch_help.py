"""A running consumer that a test inspects.

White box: the type of a reason, which no package exports.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from consumer_help import P0, log_of

from sluicegate import Consumer
from sluicegate.consumer import MemorySource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from sluicegate import Message
    from sluicegate.consumer import MemoryLog
    from sluicegate.consumer.operating.report import WaitCause
    from sluicegate.testing import FakeClock

NEVER = 1e6
"""Seconds that no test waits for."""


class Gate:
    """A handler whose messages wait until they are released; each is settled as `results`
    specifies.
    """

    def __init__(self, **results: object) -> None:
        self._results = results
        self._open = asyncio.Event()
        self.handled: list[int] = []

    async def __call__(self, message: Message) -> object:
        if message.key in self._results:
            return self._results[message.key]
        await self._open.wait()
        self.handled.append(message.offset)
        return None

    def open(self) -> None:
        """Release all messages, including those in `results`."""
        self._results.clear()
        self._open.set()


@asynccontextmanager
async def running(
    clock: FakeClock,
    source: MemorySource | MemoryLog,
    handler: Callable[[Message], Awaitable[object]],
    **options: object,
) -> AsyncGenerator[Consumer]:
    """A consumer that has run until it is idle; it is stopped at the end."""
    if not isinstance(source, MemorySource):
        source = MemorySource(source, clock=clock)
    consumer = Consumer(source, clock=clock, **{"drain": 0.1, **options})  # type: ignore[arg-type]
    async with consumer:
        run = asyncio.create_task(consumer.run(handler))
        await clock.run_until_idle()
        try:
            yield consumer
        finally:
            consumer.stop()
            await run


def causes_of(consumer: Consumer, partition: object = P0) -> tuple[WaitCause, ...]:
    """The reasons for which a partition waits."""
    explanation = consumer.explain()
    return next(each.causes for each in explanation.partitions if each.partition == partition)


__all__ = ["NEVER", "Gate", "causes_of", "log_of", "running"]
