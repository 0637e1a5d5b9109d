"""Running consumers on the source under test."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ....consumer import Consumer
from .subject import SourceUnderTest
from .watched import WatchedSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import Unpack

    from ....consumer import DrainReport
    from ....consumer.settings import ConsumerOptions
    from .journal import Journal

DRAIN = 5.0
"""The consumer's default, in seconds; a source may allow less."""


class ConsumerRun:
    """A running consumer and its source."""

    def __init__(self, consumer: Consumer, source: WatchedSource) -> None:
        self.consumer = consumer
        self.source = source
        self._task: asyncio.Task[DrainReport] | None = None

    def begin(self, run: Callable[[Consumer], Awaitable[DrainReport]]) -> None:
        """Start the consumer."""

        async def running() -> DrainReport:
            return await run(self.consumer)

        self._task = asyncio.get_running_loop().create_task(running())

    async def end(self) -> DrainReport:
        """Suspend until the consumer has ended without a drain; raises its error."""
        assert self._task is not None
        return await self._task

    async def stop(self) -> DrainReport:
        """Drain the consumer; a second call has no effect."""
        self.consumer.stop()
        return await self.end()


class ConsumingSource(SourceUnderTest):
    """Helpers that run consumers on the source."""

    @asynccontextmanager
    async def consuming(
        self,
        topic: str,
        journal: Journal,
        handler: Callable[[Any], Awaitable[object]] | None = None,
        *,
        run: Callable[[Consumer], Awaitable[DrainReport]] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> AsyncIterator[ConsumerRun]:
        """Run a consumer with this handler inside the context, and drain it at the end.

        `run` starts it in another way. Checks the calls that its source received.
        """
        call = handler or journal.handler()
        source = WatchedSource(self.source(topic), journal.news, journal.is_settled)
        defaults: ConsumerOptions = {
            "clock": journal.clock,
            "commit_every": 3600.0,
            "drain": DRAIN,
        }
        settings: ConsumerOptions = {**defaults, **options}
        if source.traits.revoke_within is not None:
            settings["drain"] = min(settings["drain"], 0.9 * source.traits.revoke_within)
        consumer = Consumer(source, **settings)
        async with consumer:
            running = ConsumerRun(consumer, source)
            running.begin(run or (lambda consumer: consumer.run(call)))
            try:
                yield running
            finally:
                await running.stop()
        assert source.violations + journal.violations == []

    async def lost(self, run: ConsumerRun, journal: Journal) -> None:
        """Lose all claims of a consumer; suspend until it has as many new ones."""
        before = {*run.source.claims}
        await self.lose(run.source.inner)
        await journal.news.wait_for(
            lambda: len(run.source.claims) == len(before) and before.isdisjoint(run.source.claims)
        )
