"""When a consumer is ready, and when it is alive. White box: the heartbeat alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from consumer_help import P0, Recorder, log_of
from watch_help import Gate, running

from sluicegate import ClosedError, Consumer
from sluicegate.consumer import MemoryLog, MemorySource
from sluicegate.consumer.operating.health import Heartbeat

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluicegate.consumer import TopicPartition
    from sluicegate.testing import FakeClock


class Late(MemorySource):
    """Assigns nothing when it is opened, not even an empty set."""

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign these partitions, which may be none."""
        if wanted := list(partitions):
            super().assign(wanted)


async def test_a_consumer_is_ready_from_its_first_assignment_to_its_drain(
    fake_clock: FakeClock,
) -> None:
    """consumer/O9, O-T10, consumer/C:B4."""
    log, gate = log_of("a"), Gate()
    source = Late(log, partitions=[], clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock)
    assert not consumer.ready
    assert consumer.alive
    async with consumer:
        run = asyncio.create_task(consumer.run(gate))
        ready = asyncio.create_task(consumer.wait_ready())
        await fake_clock.advance(60.0)
        assert not consumer.ready
        assert not ready.done()
        assert consumer.health().not_ready == "its source has not assigned partitions yet"
        source.assign([P0])
        assert consumer.ready
        await ready
        consumer.stop()
        assert not consumer.ready, "from the beginning of the drain on, not from its end"
        assert consumer.alive
        gate.open()
        await run
    assert not consumer.ready
    assert not consumer.alive


async def test_a_member_without_partitions_is_ready(fake_clock: FakeClock) -> None:
    """O-T10: it takes over when another member leaves."""
    async with running(fake_clock, MemoryLog(), Recorder()) as consumer:
        assert consumer.ready


async def test_a_trouble_of_the_source_ends_readiness_until_it_is_over(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:B4."""
    source = MemorySource(log_of("a"), clock=fake_clock)
    async with running(fake_clock, source, Recorder()) as consumer:
        source.report("no broker")
        assert not consumer.ready
        ready = asyncio.create_task(consumer.wait_ready())
        await fake_clock.advance(5.0)
        assert not ready.done()
        assert consumer.alive
        source.report(None)
        await ready
        assert consumer.ready


async def test_waiting_for_readiness_ends_with_the_consumer(fake_clock: FakeClock) -> None:
    """O-T10: it raises an error instead of waiting forever."""
    consumer = Consumer(
        Late(log_of("a"), partitions=[], clock=fake_clock), clock=fake_clock, name="billing"
    )
    with pytest.raises(ClosedError, match="billing is not open"):
        await consumer.wait_ready()
    async with consumer:
        run = asyncio.create_task(consumer.run(Recorder()))
        ready = asyncio.create_task(consumer.wait_ready())
        await fake_clock.run_until_idle()
        consumer.stop()
        with pytest.raises(ClosedError, match="billing will not be ready: it "):
            await ready
        await run


async def test_a_failed_consumer_is_dead_at_once(fake_clock: FakeClock) -> None:
    """consumer/C:B4: also while it still drains."""
    gate, source = Gate(), MemorySource(log_of("a"), clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, drain=30.0)
    async with consumer:
        run = asyncio.create_task(consumer.run(gate))
        await fake_clock.run_until_idle()
        source.script_fetch(ConnectionError("the broker has gone"))
        await fake_clock.advance(1.0)
        assert not run.done()
        assert not consumer.alive
        assert consumer.health().not_alive == "it has failed: ConnectionError: the broker has gone"
        gate.open()
        with pytest.raises(ConnectionError):
            await run
    assert not consumer.alive


class Blocked(asyncio.SelectorEventLoop):
    """An event loop whose time advances while nothing runs."""

    now = 100.0

    def time(self) -> float:
        """The loop's own time."""
        return self.now


async def test_a_blocked_event_loop_is_not_alive(fake_clock: FakeClock) -> None:
    """consumer/C:B4: as seen by another thread."""
    async with running(fake_clock, log_of("a"), Gate()) as consumer:
        heart, loop = consumer._open().sampler.heart, Blocked()
        heart.begin(loop)
        loop.now += 29.0
        assert consumer.alive
        loop.now += 2.0
        assert consumer.health().not_alive == "its event loop has been blocked for 31 s"
        heart.beat()
        assert consumer.alive
        loop.close()


async def test_a_consumer_that_is_cancelled_before_its_first_step_has_ended(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:B4: even if none of its tasks has ever run."""
    consumer = Consumer(MemorySource(log_of("a"), clock=fake_clock), clock=fake_clock)
    async with consumer:
        consumer.stop()
        await consumer.run(Recorder())
    assert consumer.health().not_alive == "it has ended"
    assert consumer.health().not_ready == "it has ended"


def test_a_heart_that_does_not_beat_is_not_late() -> None:
    heart = Heartbeat()
    heart.beat()
    assert heart.late == 0.0
    assert not heart.is_beating
