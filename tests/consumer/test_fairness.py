"""The choice of the next key, and the cost of a stuck key for the others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from consumer_help import finite, log_of, records

from sluicegate import Consumer
from sluicegate.consumer import InFlight, MemoryLog, MemorySource

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import FakeClock


async def test_every_ready_key_starts_within_one_round(fake_clock: FakeClock) -> None:
    """consumer/C:O5: a hot key with a deep queue gets one turn per round, like any other key."""
    keys: list[object] = [*["hot"] * 500, *range(2_000)]
    started: list[object] = []

    async def handle(message: Message) -> None:
        started.append(message.key)
        await fake_clock.sleep(0)

    options: dict[str, Any] = {"concurrency": 10, "in_flight": InFlight(5_000, fetch_max=5_000)}
    source = MemorySource(log_of(*keys), ends=True, chunk=5_000, clock=fake_clock)
    await Consumer(source, clock=fake_clock, **options).run(handle)
    first_round = started[: 2_001 + options["concurrency"]]
    assert set(first_round) == set(keys)
    assert started.count("hot") == 500


async def test_no_other_worker_is_started_for_the_next_message_of_one_that_yields(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:O5: in a partition whose handlers never suspend, one worker runs all of them."""
    most = 0

    async def handle(message: Message) -> None:
        nonlocal most
        assert consumer._engine is not None
        most = max(most, len(consumer._engine.workers.slots))

    log = log_of(*range(5_000))
    options: dict[str, Any] = {"ordering": "partition", "in_flight": InFlight(fetch_max=100)}
    async with finite(log, fake_clock, **options) as consumer:
        await consumer.run(handle)
    assert most == 1


async def _handled_in(seconds: float, clock: FakeClock, *, stuck: bool) -> int:
    """Messages of other keys handled in this time, with or without a stuck key."""
    log = MemoryLog(records([("stuck" if n % 20 == 0 else n % 100) for n in range(4_000)]))
    others = 0

    async def handle(message: Message) -> None:
        nonlocal others
        if message.key == "stuck" and stuck:
            await asyncio.get_running_loop().create_future()
        await clock.sleep(0.01)
        others += message.key != "stuck"

    consumer = finite(log, clock, concurrency=20, in_flight=400, drain=0.0)
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handle))
        await clock.advance(seconds)
        handled = others
        consumer.stop()
        await run
    return handled


async def test_a_stuck_key_costs_the_others_only_its_worker(fake_clock: FakeClock) -> None:
    """consumer/C:O2, consumer/C:N11: the other keys keep 95 % until the window is full."""
    free = await _handled_in(1.0, fake_clock, stuck=False)
    beside = await _handled_in(1.0, fake_clock, stuck=True)
    assert free > 1_500
    assert beside >= 0.95 * free
