"""Runs of a subscription with a time budget: each continues where the previous one ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.postgres.streams.served_help import served

from sluicegate import Consumer
from sluicegate.consumer import ConsumerObserver

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate import Message
    from sluicegate.batcher import LoopClock


class Draining(ConsumerObserver):
    """Detects when a consumer drains."""

    def __init__(self) -> None:
        self.begins = asyncio.Event()

    def on_state(self, name: str, state: str) -> None:
        """Record the beginning of the drain."""
        if state == "draining":
            self.begins.set()


async def test_a_budget_is_over_and_the_next_run_handles_the_rest(
    log: Log, real_clock: LoopClock
) -> None:
    """S-T12: in order, each message once."""
    handled: list[int] = []

    async def run(budget: float) -> bool:
        draining = Draining()

        async def handle(message: Message) -> None:
            handled.append(message.offset)
            if message.offset == 2:
                await draining.begins.wait()

        source = served(log, ends=True)
        consumer = Consumer(source, budget=budget, observers=[draining], clock=real_clock)
        report = await consumer.run(handle)
        assert report.complete
        return report.work_remaining

    async with log.connected() as con:
        await log.append(con, "a-1", 0, 1, 2, 3)
    assert await run(3.0)  # it has to connect and read two messages within it
    assert handled == [1, 2]
    assert not await run(60.0)
    assert handled == [1, 2, 3, 4]
