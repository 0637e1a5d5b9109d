"""Interjections and the report of a stall: those that end are progress, but not that of records."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from consumer_help import log_of

from sluicegate import Consumer
from sluicegate.consumer import MemorySource
from sluicegate.consumer.jobs import EventContext, Incomplete, Interjector

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


async def idle(context: EventContext) -> None:
    """Handle nothing."""


async def forgotten(context: EventContext) -> Incomplete:
    """Never complete the event."""
    return Incomplete()


async def hanging(context: EventContext) -> None:
    """Never end."""
    await asyncio.Event().wait()


async def slow(context: EventContext) -> None:
    """Take longer than its interval."""
    await asyncio.sleep(20.0)


@pytest.mark.parametrize(
    ("handler", "interjection", "is_stalled"),
    [(idle, slow, False), (forgotten, slow, True), (idle, hanging, True)],
    ids=["interjections that end", "an event that hangs", "an interjection that hangs"],
)
async def test_a_stall_beside_interjections(
    fake_clock: FakeClock, handler: object, interjection: object, is_stalled: bool
) -> None:
    """consumer/C:N5: an idle partition with one interjection after another is not stalled."""
    every = Interjector(interjection, every=0.01)  # type: ignore[arg-type]
    source = MemorySource(log_of("a"))
    async with (
        Consumer(
            source, ordering="partition", clock=fake_clock, stall_after=60.0, drain=1.0
        ) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        run = tasks.create_task(
            consumer.run_events(handler, interjections=[every])  # type: ignore[arg-type]
        )
        for _ in range(20):
            await fake_clock.advance(10.0)
        assert (consumer.health().stalled is not None) == is_stalled
        consumer.stop()
        await run
