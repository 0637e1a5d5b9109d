"""Runs of a subscription with a time budget: each continues where the previous one ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.postgres.streams.served_help import served

from sluicegate import Consumer
from sluicegate.batcher import LoopClock
from sluicegate.consumer import ConsumerObserver

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.postgres.streams.log_help import Log

    from sluicegate import Message

BUDGET = 60.0


class Jumping(LoopClock):
    """Real time, which a test moves forward."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0.0
        self._timers: list[tuple[float, asyncio.TimerHandle, Callable[[], object]]] = []

    def now(self) -> float:
        return super().now() + self._ahead

    def call_at(self, when: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        timer = asyncio.get_running_loop().call_at(when - self._ahead, callback)
        self._timers.append((when, timer, callback))
        return timer

    def timeout_at(self, when: float | None) -> asyncio.Timeout:
        return super().timeout_at(None if when is None else when - self._ahead)

    def jump(self, seconds: float) -> None:
        """Move the time forward, and make the calls that are due by then."""
        before = self.now()
        self._ahead += seconds
        for when, timer, callback in self._timers:
            if before < when <= self.now() and not timer.cancelled():
                timer.cancel()
                asyncio.get_running_loop().call_soon(callback)


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

    async def run() -> bool:
        clock, draining = Jumping(), Draining()

        async def handle(message: Message) -> None:
            handled.append(message.offset)
            if message.offset == 2:
                clock.jump(BUDGET)
                await draining.begins.wait()

        source = served(log, ends=True)
        consumer = Consumer(source, budget=BUDGET, observers=[draining], clock=clock)
        report = await consumer.run(handle)
        assert report.complete
        return report.work_remaining

    async with log.connected() as con:
        await log.append(con, "a-1", 0, 1, 2, 3)
    assert await run()
    assert handled == [1, 2]
    assert not await run()
    assert handled == [1, 2, 3, 4]
