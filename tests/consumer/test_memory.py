"""The memory source: the actions of tests on it, and their effect on its consumer.

White box: a host that records what the source says.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from sluicegate import ClosedError, ConfigError, Consumer, PermanentError, TransientError
from sluicegate.consumer import (
    InFlight,
    MemoryLog,
    MemorySource,
    Position,
    Record,
    SourceCapabilities,
    TopicPartition,
)
from sluicegate.consumer.memory.source import Crashed
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sluicegate import Message
    from sluicegate.consumer import DrainReport
    from sluicegate.testing import FakeClock

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def log_of(count: int, *, partition: int = 0) -> MemoryLog:
    log = MemoryLog()
    for number in range(count):
        log.produce("t", b"%d" % number, key=number, partition=partition)
    return log


class Handled:
    """A handler that waits `seconds` and records the handled messages."""

    def __init__(self, clock: FakeClock, seconds: float = 0.0) -> None:
        self.clock, self.seconds = clock, seconds
        self.offsets: list[int] = []

    async def __call__(self, message: Message) -> None:
        await self.clock.sleep(self.seconds)
        self.offsets.append(message.offset)


@asynccontextmanager
async def running(
    source: MemorySource, handler: Any, clock: FakeClock, **options: Any
) -> AsyncIterator[asyncio.Task[DrainReport]]:
    """A consumer that runs inside the block."""
    consumer = Consumer(source, clock=clock, **options)
    async with consumer:
        run = asyncio.get_running_loop().create_task(consumer.run(handler))
        await clock.run_until_idle()
        try:
            yield run
        finally:
            consumer.stop()
            await asyncio.wait([run])
    run.exception()


# -- delivery --------------------------------------------------------------------------------------


async def test_records_that_come_again_in_their_claim_are_not_handled_again(
    fake_clock: FakeClock,
) -> None:
    """O-T23."""
    log = log_of(5)
    source, handler = MemorySource(log, clock=fake_clock), Handled(fake_clock, 1.0)
    async with running(source, handler, fake_clock, concurrency=2):
        source.redeliver(P0)
        await fake_clock.advance(10.0)
        source.redeliver(P0, 3)
        await fake_clock.advance(10.0)
    assert [record.offset for record in source.redelivered] == [0, 1, 2, 3, 4, 3, 4]
    assert sorted(handler.offsets) == [0, 1, 2, 3, 4]
    assert log.positions[P0] == Position(5)


async def test_a_new_claim_begins_at_the_stored_position(fake_clock: FakeClock) -> None:
    log = log_of(4)
    log.store({P0: Position(2)})
    source, handler = MemorySource(log, clock=fake_clock), Handled(fake_clock)
    async with running(source, handler, fake_clock):
        source.lose([P0])
        source.assign([P0])
        await fake_clock.advance(0.5)
        assert handler.offsets == [2, 3, 2, 3]


async def test_an_append_wakes_a_fetch_and_a_new_partition_is_claimed(
    fake_clock: FakeClock,
) -> None:
    log = log_of(1)
    handler = Handled(fake_clock)
    async with running(MemorySource(log, clock=fake_clock), handler, fake_clock):
        log.produce("t", b"more")
        log.produce("t", b"elsewhere", partition=1)
        await fake_clock.run_until_idle()
        assert sorted(handler.offsets) == [0, 0, 1]


async def test_holes_never_hold_a_position_back(fake_clock: FakeClock) -> None:
    """O-T6, consumer/C:C2: before the first record, between records, and after the last one."""
    log = MemoryLog([Record("t", 0, offset) for offset in (3, 4, 8)])
    log.store({P0: Position(0)})
    log.skip(P0, 2)
    handler = Handled(fake_clock)
    async with running(MemorySource(log, clock=fake_clock), handler, fake_clock):
        await fake_clock.advance(1.5)
        assert (handler.offsets, log.positions[P0]) == ([3, 4, 8], Position(11))
        log.skip(P0)
        await fake_clock.advance(1.5)
        assert log.positions[P0] == Position(12)


async def test_a_hole_behind_an_unfinished_record_is_not_passed(fake_clock: FakeClock) -> None:
    log = log_of(1)
    log.skip(P0, 3)
    handler = Handled(fake_clock, 5.0)
    async with running(MemorySource(log, clock=fake_clock), handler, fake_clock):
        await fake_clock.advance(4.0)
        assert P0 not in log.positions
        await fake_clock.advance(3.0)
        assert log.positions[P0] == Position(4)


async def test_a_hole_behind_records_without_room_is_not_passed(fake_clock: FakeClock) -> None:
    """consumer/C:C2: the end reported by a fetch applies once all its records are inside."""
    log = log_of(6)
    log.skip(P0, 3)
    handler = Handled(fake_clock, 0.9)
    source = MemorySource(log, clock=fake_clock)
    async with running(
        source, handler, fake_clock, in_flight=InFlight(bytes=10, size_of=lambda record: 6)
    ):
        await fake_clock.advance(3.5)
        assert log.positions[P0] == Position(3)
        await fake_clock.advance(5.0)
        assert (handler.offsets, log.positions[P0]) == ([0, 1, 2, 3, 4, 5], Position(9))


async def test_removed_records_are_holes(fake_clock: FakeClock) -> None:
    log = log_of(5)
    log.remove(P0, {0, 2, 4})
    handler = Handled(fake_clock)
    await Consumer(MemorySource(log, ends=True), clock=fake_clock).run(handler)
    assert (handler.offsets, log.positions[P0]) == ([1, 3], Position(5))


async def test_a_fetch_raises_what_is_scripted_and_ends_the_run(fake_clock: FakeClock) -> None:
    """O-T22: after a drain, which commits."""
    log = log_of(2)
    source = MemorySource(log, clock=fake_clock)
    async with Consumer(source, clock=fake_clock) as consumer:
        run = asyncio.get_running_loop().create_task(consumer.run(Handled(fake_clock)))
        await fake_clock.run_until_idle()
        source.script_fetch(TransientError("no route"))
        with pytest.raises(TransientError, match="no route"):
            await run
    assert log.positions[P0] == Position(2)


# -- acknowledgement deadlines ---------------------------------------------------------------------


async def test_in_progress_extends_the_sources_deadline(fake_clock: FakeClock) -> None:
    """O-T17: a record extended in time is not redelivered; another one is."""
    log = log_of(2)
    source = MemorySource(log, ack_wait=30.0, capabilities=SourceCapabilities(), clock=fake_clock)

    async def handle(message: Message) -> None:
        for _ in range(5):
            await fake_clock.sleep(20.0)
            if message.offset == 0:
                message.in_progress()

    async with running(source, handle, fake_clock) as run:
        await fake_clock.advance(200.0)
        assert [record.offset for record in source.redelivered] == [1, 1, 1]
        assert log.positions[P0] == Position(2)
    assert run.result().counts.acked == 2


async def test_a_consumer_extends_what_it_holds_by_itself(fake_clock: FakeClock) -> None:
    """O-T17: as often as the source requires, so that nothing is redelivered."""
    source = MemorySource(log_of(2), ack_wait=30.0, clock=fake_clock)
    assert source.capabilities.extend_every == 10.0
    async with running(source, Handled(fake_clock, 100.0), fake_clock):
        await fake_clock.advance(110.0)
        assert source.redelivered == []


async def test_in_progress_has_no_effect_without_a_deadline(fake_clock: FakeClock) -> None:
    """O-T17."""
    source = MemorySource(log_of(1), clock=fake_clock)

    async def handle(message: Message) -> None:
        message.in_progress()
        await fake_clock.sleep(1000.0)
        message.in_progress()

    async with running(source, handle, fake_clock):
        await fake_clock.advance(1100.0)
        assert source.redelivered == []


# -- claims ----------------------------------------------------------------------------------------


async def test_a_revoke_waits_commits_and_ends(fake_clock: FakeClock) -> None:
    """O-T7: the host has the time of the revoke; its positions are stored while the claim
    exists.
    """
    host, log = RecordingHost(), log_of(5)
    source = MemorySource(log, clock=fake_clock, commit_seconds=1.0)
    async with source.open(host):
        (claim,) = host.open
        host.will_answer({P0: Position(3, "map")})

        async def drain() -> None:
            await fake_clock.sleep(2.0)
            assert P0 not in log.positions

        host.will_drain(drain)
        await source.revoke([P0], 7.0)
        assert (host.within, fake_clock.now()) == ([7.0], 3.0)
        assert log.positions == {P0: Position(3, "map")}
        assert claim.is_closed
        assert source.claimed == []


async def test_a_loss_during_a_revoke_commits_nothing_and_spares_the_next_claim(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:R4: the drain of an older assignment ends no newer claim."""
    host, log = RecordingHost(), log_of(5)
    source = MemorySource(log, clock=fake_clock)
    async with source.open(host):
        host.will_answer({P0: Position(3)})
        gate = asyncio.Event()
        host.will_drain(gate.wait)
        revoke = asyncio.get_running_loop().create_task(source.revoke([P0]))
        await fake_clock.run_until_idle()
        source.lose([P0])
        source.assign([P0])
        gate.set()
        await revoke
        assert log.commits == []
        assert [claim.is_closed for claim in host.claims] == [True, False]
        assert source.claimed == [P0]


async def test_two_members_share_a_log(fake_clock: FakeClock) -> None:
    """O-T7, O-T8, G-T16: records settled by one member are not repeated by the other."""
    log = log_of(6)
    first, second = MemorySource(log, clock=fake_clock), MemorySource(log, clock=fake_clock)
    one, two = Handled(fake_clock, 1.0), Handled(fake_clock, 1.0)
    async with (
        running(first, one, fake_clock, concurrency=2),
        running(second, two, fake_clock, concurrency=2),
    ):
        assert (first.claimed, second.claimed) == ([P0], [])
        await fake_clock.advance(1.5)
        await first.give([P0], to=second)
        await fake_clock.advance(10.0)
    assert sorted(one.offsets) == [0, 1, 2, 3]
    assert sorted(two.offsets) == [4, 5]
    assert log.positions[P0] == Position(6)


async def test_a_partition_has_one_owner(fake_clock: FakeClock) -> None:
    log = log_of(1)
    first, second = MemorySource(log), MemorySource(log, partitions=[])
    async with first.open(RecordingHost()), second.open(RecordingHost()):
        with pytest.raises(ConfigError, match=r"t/0.*must be free"):
            second.assign([P1, P0])
        assert second.claimed == []
        log.produce("t", b"", partition=1)
        assert (first.claimed, second.claimed) == ([P0, P1], [])


async def test_after_a_crash_nothing_more_is_stored(fake_clock: FakeClock) -> None:
    """The next process begins at the last commit, immediately."""
    log = log_of(4)
    source, before = MemorySource(log, clock=fake_clock), Handled(fake_clock, 0.9)
    consumer = Consumer(source, clock=fake_clock, concurrency=1)
    async with consumer:
        run = asyncio.get_running_loop().create_task(consumer.run(before))
        await fake_clock.advance(2.5)
        source.crash()
        with pytest.raises(Crashed):
            await run
    assert log.positions[P0] == Position(2)
    after = Handled(fake_clock)
    await Consumer(MemorySource(log, ends=True), clock=fake_clock).run(after)
    assert after.offsets == [2, 3]
    with pytest.raises(Crashed):
        await source.keep_alive()


# -- commits ---------------------------------------------------------------------------------------


async def test_a_failed_commit_is_followed_by_a_newer_one(fake_clock: FakeClock) -> None:
    """consumer/C:C6."""
    log = log_of(3)
    source = MemorySource(log, clock=fake_clock)
    source.script_commit(TransientError("no coordinator"))
    async with running(source, Handled(fake_clock), fake_clock):
        await fake_clock.advance(1.5)
        assert log.commits == []
        log.produce("t", b"3", key=3)
        await fake_clock.advance(1.0)
        assert log.commits == [(P0, Position(4))]


async def test_a_commit_whose_answer_is_lost_is_stored(fake_clock: FakeClock) -> None:
    log = log_of(3)
    source = MemorySource(log, clock=fake_clock)
    source.script_commit(TransientError("lost"), stored=True)
    async with running(source, Handled(fake_clock), fake_clock):
        await fake_clock.advance(1.5)
        assert log.commits == [(P0, Position(3))]
        await fake_clock.advance(1.0)
        assert log.commits == [(P0, Position(3))] * 2


async def test_a_slow_commit_leaves_out_a_claim_that_ended_meanwhile(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:C3: whether a claim is held is checked after the last suspension."""
    host, log = RecordingHost(), MemoryLog(partitions=[P0, P1])
    source = MemorySource(log, clock=fake_clock)
    async with source.open(host):
        one, two = host.open
        source.script_commit(seconds=2.0)
        commit = asyncio.get_running_loop().create_task(
            source.commit({one: Position(1), two: Position(2)})
        )
        await fake_clock.advance(1.0)
        source.lose([P0])
        assert await commit == [two]
        assert fake_clock.now() == 2.0
        assert log.positions == {P1: Position(2)}


async def test_metadata_over_the_limit_is_refused_alone(fake_clock: FakeClock) -> None:
    """4,096 characters are accepted, as with a broker."""
    host, log = RecordingHost(), MemoryLog(partitions=[P0, P1])
    source = MemorySource(log)
    async with source.open(host):
        one, two = host.open
        with pytest.raises(PermanentError, match=r"t/0 with 4097 characters"):
            await source.commit({one: Position(1, "x" * 4097), two: Position(1, "x" * 4096)})
    assert log.positions == {P1: Position(1, "x" * 4096)}


# -- the rest --------------------------------------------------------------------------------------


async def test_a_trouble_reaches_the_host(fake_clock: FakeClock) -> None:
    host = RecordingHost()
    source = MemorySource(log_of(1))
    async with source.open(host):
        source.report("no broker at localhost:9092")
        source.report(None)
    assert host.reports == ["no broker at localhost:9092", None]
    with pytest.raises(ClosedError, match="is not open"):
        source.report(None)


async def test_a_source_is_kept_alive_while_nothing_is_fetched(fake_clock: FakeClock) -> None:
    """consumer/C:B1."""
    source = MemorySource(
        log_of(5), clock=fake_clock, capabilities=SourceCapabilities(keep_alive_every=2.0)
    )
    async with running(source, Handled(fake_clock, 9.0), fake_clock, in_flight=1):
        await fake_clock.advance(8.0)
        assert source.kept_alive == 4


class PlainSource:
    """A source that has no calls but those of every source."""

    def __init__(self, source: MemorySource, capabilities: SourceCapabilities) -> None:
        self.capabilities = capabilities
        self.open, self.fetch = source.open, source.fetch
        self.commit, self.ends = source.commit, source.ends


async def test_a_source_need_not_keep_alive_or_extend(fake_clock: FakeClock) -> None:
    source = PlainSource(MemorySource(log_of(3), ends=True, clock=fake_clock), SourceCapabilities())

    async def handle(message: Message) -> None:
        message.in_progress()

    report = await Consumer(source, clock=fake_clock, in_flight=1).run(handle)
    assert report.counts.acked == 3


@pytest.mark.parametrize(
    ("capabilities", "named"),
    [
        (SourceCapabilities(keep_alive_every=2.0), r"needs keep_alive\(\)"),
        (SourceCapabilities(extend_every=2.0), r"needs extend\(\)"),
    ],
)
def test_a_source_without_the_calls_it_asks_for_is_refused(
    capabilities: SourceCapabilities, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        Consumer(PlainSource(MemorySource(log_of(1)), capabilities))


@pytest.mark.parametrize("is_batch", [False, True])
async def test_receive_closes_the_source_and_run_leaves_it_open(
    fake_clock: FakeClock, *, is_batch: bool
) -> None:
    """consumer/O19, O-T25: also with batches."""
    log = log_of(3)

    async def handle(messages: object) -> None:
        """Acknowledge the message."""

    source = MemorySource(log, ends=True)
    async with Consumer(source, clock=fake_clock) as consumer:
        await (consumer.run_batch(handle) if is_batch else consumer.run(handle))
        assert source.claimed == [P0]
    assert source.claimed == []
    source = MemorySource(log, ends=True)
    consumer = Consumer(source, clock=fake_clock)
    await (consumer.run_batch(handle) if is_batch else consumer.run(handle))
    assert (source.claimed, log.group.free([P0])) == ([], [P0])


async def test_one_consumer_at_a_time(fake_clock: FakeClock) -> None:
    source = MemorySource(log_of(1))
    async with source.open(RecordingHost()):
        with pytest.raises(ConfigError, match="is already open"):
            await source.open(RecordingHost()).__aenter__()
    async with source.open(RecordingHost()):
        assert source.claimed == [P0]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: MemorySource(cast("Any", [])), r"log=\[\]: must be a MemoryLog"),
        (lambda: MemorySource(MemoryLog(), chunk=0), "chunk=0"),
        (lambda: MemorySource(MemoryLog(), ack_wait=0), "ack_wait=0"),
        (lambda: MemorySource(MemoryLog(), commit_seconds=-1), "commit_seconds=-1"),
        (
            lambda: MemorySource(MemoryLog(), capabilities=cast("Any", {})),
            r"capabilities=\{\}: must be SourceCapabilities",
        ),
        (lambda: MemoryLog([Record("t", 0, 5), Record("t", 0, 5)]), "offset=5: .* at least 6"),
    ],
)
def test_a_bad_argument_is_refused(make: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()


async def test_an_end_of_a_log_without_partitions_is_refused(fake_clock: FakeClock) -> None:
    """It would wait forever: the log ends with its partitions, and there are none."""
    with pytest.raises(ConfigError, match=r"has no partition.*MemoryLog\(partitions=\[\.\.\.\]\)"):
        await Consumer(MemorySource(MemoryLog(), ends=True), clock=fake_clock).run(print)


async def test_an_empty_partition_ends(fake_clock: FakeClock) -> None:
    source = MemorySource(MemoryLog(partitions=[P0]), ends=True)
    report = await Consumer(source, clock=fake_clock).run(print)
    assert report.complete
