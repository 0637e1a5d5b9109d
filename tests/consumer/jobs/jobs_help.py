"""A consumer of events for tests of jobs."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sluicegate import Backoff, Consumer, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from sluicegate.consumer import MemorySource
    from sluicegate.consumer.jobs import EventContext
    from sluicegate.testing import FakeClock

PROMPT = RetryPolicy(
    attempts=2, unlisted_attempts=2, backoff=Backoff(base=0.1, longest=0.1, jitter="none")
)


@asynccontextmanager
async def running(
    source: MemorySource,
    clock: FakeClock,
    handler: Callable[[EventContext], Any],
    *jobs: Any,
    **options: Any,
) -> AsyncGenerator[Consumer]:
    """A consumer that runs until the block ends and is empty by then."""
    defaults: dict[str, Any] = {"ordering": "partition", "name": "billing"}
    options = {**defaults, "retry": PROMPT, "poison": "skip", **options}
    async with Consumer(source, clock=clock, **options) as consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run_events(handler, jobs=jobs))
        await clock.advance(0.0)
        try:
            yield consumer
        finally:
            consumer.stop()
            await run


async def pass_on(key: object, value: object) -> None:
    """Do nothing."""
