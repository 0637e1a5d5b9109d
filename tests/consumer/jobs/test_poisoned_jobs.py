"""Poison among events that are completed later, with each strategy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, log_of, records
from jobs.jobs_help import pass_on, running

from sluicegate import Consumer, Terminate
from sluicegate.consumer import MemoryParkStore, MemorySource, Poison, PoisonError, Position
from sluicegate.consumer.jobs import JobScheduler
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate.consumer import ParkedRecord
    from sluicegate.consumer.jobs import EventContext, Incomplete
    from sluicegate.testing import FakeClock


class KeptParkStore(MemoryParkStore):
    """A store that outlives the consumers of a test and writes while its gate is open."""

    is_durable = True

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        await self.gate.wait()
        await super().park(group, key, records)


def poisoned(seen: list[str], bad: set[str]) -> JobScheduler[str, int]:
    """A scheduler whose finaliser fails the events of these keys while they are in the set."""

    async def finalise(context: EventContext, key: str, *_: object) -> Terminate | None:
        seen.append(f"finalise {key}")
        return Terminate("bad") if key in bad else None

    return JobScheduler(pass_on, finalise)


@pytest.mark.parametrize("strategy", ["block", "block_and_dead_letter"])
@pytest.mark.parametrize("action", ["retry", "skip"])
async def test_a_blocked_finaliser_is_tried_again_alone(
    fake_clock: FakeClock, strategy: Any, action: Any
) -> None:
    """consumer/C:F2, consumer/G2: events behind it that await their finaliser wait for
    `unblock`.
    """
    seen, bad = list[str](), {"a"}
    jobs, letters = poisoned(seen, bad), MemorySink[Any]()

    async def handle(context: EventContext) -> Incomplete:
        seen.append(f"handle {context.key}")
        return jobs.schedule(context, context.key, 0)

    log = log_of("a", "b")
    source = MemorySource(log, clock=fake_clock)
    poison = Poison(strategy, dead_letters=None if strategy == "block" else letters)
    async with running(source, fake_clock, handle, jobs, poison=poison) as consumer:
        await fake_clock.advance(2.0)
        assert seen == ["handle a", "handle b", "finalise a"]
        (blocked,) = consumer.blocked
        assert blocked.offset == 0
        assert "blocked" in str(consumer.explain())
        bad.clear()
        assert consumer.unblock(None, action=action) == 1
        await fake_clock.advance(2.0)
    again = ["finalise a"] if action == "retry" else []
    assert seen[3:] == [*again, "finalise b"]
    assert len(letters.items) == (strategy != "block")
    assert log.positions[P0] == Position(2)


async def test_an_exit_by_poison_leaves_its_event(fake_clock: FakeClock) -> None:
    """consumer/C:F2: the run raises its error, and the event stays unsettled."""
    seen: list[str] = []
    jobs = poisoned(seen, {"b"})

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, 0)

    log = log_of("a", "b", "c")
    source = MemorySource(log, clock=fake_clock)
    with pytest.raises(PoisonError, match="bad"):
        async with Consumer(
            source, ordering="partition", clock=fake_clock, poison="exit"
        ) as consumer:
            await consumer.run_events(handle, jobs=[jobs])
    assert log.positions[P0].offset == 1


async def test_events_that_are_out_are_finalised_between_records_of_their_parked_key(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:F2: while records are parked and while they are unparked; nothing stalls."""
    seen, gates = list[str](), {offset: asyncio.Event() for offset in range(7)}
    is_bad = True

    async def process(key: object, offset: int) -> None:
        await gates[offset].wait()

    async def finalise(context: EventContext, key: object, offset: int, _: object) -> None:
        seen.append(f"finalise {offset}")
        await fake_clock.sleep(0.5)

    jobs = JobScheduler(process, finalise)

    async def handle(context: EventContext) -> object:
        offset = context.message.offset
        seen.append(f"handle {offset}")
        return (
            Terminate("bad") if is_bad and offset == 2 else jobs.schedule(context, offset, offset)
        )

    log, store = log_of("a", "a", "a"), KeptParkStore()
    source = MemorySource(log, clock=fake_clock)
    options = {"poison": Poison("park_key", parked=store)}
    async with running(source, fake_clock, handle, jobs, **options) as consumer:
        await fake_clock.advance(1.0)
        assert consumer.stats().counts.parked == 1
        store.gate.clear()
        for record in records("aaaa", first=3):
            log.append(record)
        await fake_clock.advance(1.0)
        gates[0].set()
        await fake_clock.advance(1.0)
        assert "finalise 0" not in seen
        store.gate.set()
        await fake_clock.advance(2.0)
        assert seen[-1] == "finalise 0"
        assert consumer.stats().counts.parked == 5

        is_bad = False
        unparking = asyncio.ensure_future(consumer.unpark(None))
        gates[2].set()
        await fake_clock.advance(0.1)
        assert seen[-2:] == ["handle 2", "finalise 2"]
        gates[1].set()
        for offset in range(3, 7):
            gates[offset].set()
        await fake_clock.advance(10.0)
        assert (await unparking).is_done
        finals = [each for each in seen if each.startswith("finalise")]
        assert finals == [f"finalise {offset}" for offset in (0, 2, 1, 3, 4, 5, 6)]
        await consumer.commit()
        assert log.positions[P0] == Position(7)
        assert consumer.stats().in_flight.messages == 0


async def test_room_for_a_job_does_not_unpark_its_key(fake_clock: FakeClock) -> None:
    """consumer/C:F2, consumer/G21: both hold the lane."""
    gates, seen = {"bad": asyncio.Event(), "k": asyncio.Event()}, list[int]()

    async def process(key: str, offset: int) -> None:
        await gates[key].wait()

    async def finalise(context: EventContext, key: str, *_: object) -> object:
        return Terminate("bad") if key == "bad" else None

    jobs = JobScheduler(process, finalise, concurrency=2, max_keys=2, max_per_key=1)

    async def handle(context: EventContext) -> object:
        seen.append(context.message.offset)
        return jobs.schedule(context, context.key, context.message.offset)

    log = log_of("bad", "k", "k", "k", "k", "k")
    source = MemorySource(log, clock=fake_clock)
    options = {"poison": Poison("park_key", parked=KeptParkStore())}
    async with running(source, fake_clock, handle, jobs, **options) as consumer:
        await fake_clock.advance(1.0)
        assert jobs.stats().without_room == 1
        gates["bad"].set()
        await fake_clock.advance(0.1)
        assert consumer.parked == (None,)
        gates["k"].set()
        await fake_clock.advance(1.0)
        log.append(records("k", first=6)[0])
        await fake_clock.advance(1.0)
        assert seen == [0, 1, 2, 3]
        counts = consumer.stats().counts
        assert (counts.acked, counts.parked) == (3, 4)
