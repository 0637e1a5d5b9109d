"""Jobs of events: order per key, finalisers in partition order, commits, limits."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, P1, log_of, records

from sluicegate import ClosedError, ConfigError, Consumer
from sluicegate.consumer import Commits, MemoryLog, MemorySource, Position
from sluicegate.consumer.jobs import EventContext, Incomplete, JobScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sluicegate.consumer import DrainReport, SourceClaim
    from sluicegate.testing import FakeClock


class WatchedCommits(MemorySource):
    """Calls `look` with each committed position."""

    look: Callable[[int], None] = staticmethod(lambda offset: None)

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Any:
        for position in positions.values():
            self.look(position.offset)
        return await super().commit(positions)


async def run(
    log: MemoryLog,
    clock: FakeClock,
    handler: Callable[[EventContext], Any],
    *jobs: JobScheduler[Any, Any],
    look: Callable[[int], None] | None = None,
    **options: Any,
) -> DrainReport:
    """Handle all records of a log."""
    source = WatchedCommits(log, ends=True, clock=clock)
    if look is not None:
        source.look = look
    settings: dict[str, Any] = {"ordering": "partition", "clock": clock, **options}
    async with Consumer(source, **settings) as consumer:
        return await consumer.run_events(handler, jobs=jobs)


async def test_keys_are_in_order_and_positions_too(fake_clock: FakeClock) -> None:
    """consumer/G3, consumer/G5, G-T1: k1 is slow and k2 overtakes it, but no position does."""
    log, seen, commits = log_of("k1", "k2", "k2", "k2", "k1"), list[str](), list[int]()

    async def process(key: str, offset: int) -> None:
        seen.append(f"begin {key}@{offset}")
        await fake_clock.sleep(10.0 if key == "k1" else 1.0)
        seen.append(f"end {key}@{offset}")

    async def finalise(
        context: EventContext, key: str, offset: int, error: BaseException | None
    ) -> None:
        assert error is None
        assert context.message.offset == offset
        seen.append(f"final {key}@{offset}")

    jobs = JobScheduler(process, finalise, concurrency=4)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, context.message.offset)

    await run(log, fake_clock, handle, jobs, look=commits.append, commits=Commits(every=0.5))
    assert seen[:2] == ["begin k1@0", "begin k2@1"]
    for key, offsets in (("k1", (0, 4)), ("k2", (1, 2, 3))):
        mine = [each for each in seen if f" {key}@" in each]
        parts = [each.split()[0] for each in mine]
        assert [each for each in mine if each.startswith("final")] == [
            f"final {key}@{offset}" for offset in offsets
        ]
        assert parts.count("begin") == parts.count("end") == len(offsets)
    assert seen.index("final k2@3") < seen.index("end k1@0")
    assert commits == sorted(commits)
    assert log.positions[P0] == Position(5)


async def test_no_position_passes_an_unfinished_event(fake_clock: FakeClock) -> None:
    """consumer/G3, G-T2: 10,000 events of 1,000 keys with random delays."""
    random, unfinished = Random(1), set(range(10_000))
    log = MemoryLog(records([f"k{random.randrange(1000)}" for _ in range(10_000)]))

    async def process(key: str, offset: int) -> None:
        await fake_clock.sleep(random.choice((0.0, 0.01, 0.1)))

    async def finalise(context: EventContext, key: str, offset: int, error: object) -> None:
        unfinished.remove(offset)

    jobs = JobScheduler(process, finalise, concurrency=100)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, context.message.offset)

    def look(position: int) -> None:
        assert all(offset >= position for offset in unfinished)

    await run(log, fake_clock, handle, jobs, look=look, commits=Commits(every=0.05))
    assert not unfinished
    assert log.positions[P0] == Position(10_000)


async def test_turns_of_a_partition_exclude_each_other(fake_clock: FakeClock) -> None:
    """consumer/G4, G-T3: handlers and finalisers of a partition; another partition runs
    concurrently.
    """
    log = MemoryLog([*records("abcabcabc"), *records("abcabc", partition=1)])
    inside: dict[int, int] = {0: 0, 1: 0}
    side_by_side = 0

    async def turn(context: EventContext) -> None:
        nonlocal side_by_side
        number = context.partition.partition
        inside[number] += 1
        assert inside[number] == 1
        side_by_side = max(side_by_side, sum(inside.values()))
        await fake_clock.sleep(0.01)
        inside[number] -= 1

    async def process(key: str, value: object) -> None:
        await fake_clock.sleep(0.005)

    async def finalise(context: EventContext, *_: object) -> None:
        await turn(context)

    jobs = JobScheduler(process, finalise)

    async def handle(context: EventContext) -> Incomplete:
        await turn(context)
        return jobs.schedule(context, context.key, None)

    report = await run(log, fake_clock, handle, jobs)
    assert report.counts.acked == 15
    assert side_by_side == 2
    assert (log.positions[P0], log.positions[P1]) == (Position(9), Position(6))


async def test_a_processors_error_is_the_finalisers(fake_clock: FakeClock) -> None:
    """consumer/G6, G-T4: without a finaliser the event completes, whatever the result of the
    job.
    """
    errors: list[BaseException | None] = []

    async def process(key: str, value: object) -> None:
        raise ValueError(key)

    async def finalise(context: EventContext, key: str, value: object, error: Any) -> None:
        errors.append(error)

    with_finaliser, without = JobScheduler(process, finalise), JobScheduler(process)

    async def handle(context: EventContext) -> Incomplete:
        scheduler = with_finaliser if context.key == "a" else without
        return scheduler.schedule(context, context.key, None)

    report = await run(log_of("a", "b"), fake_clock, handle, with_finaliser, without)
    assert [repr(error) for error in errors] == ["ValueError('a')"]
    assert report.counts.acked == 2


async def test_stages_are_in_order_and_complete_with_the_last(fake_clock: FakeClock) -> None:
    """consumer/G9, G-T5: the event is committed after its second stage, and keys keep their order
    in both.
    """
    log, done, commits = log_of(*"abababab"), list[tuple[str, int]](), list[tuple[int, int]]()
    random = Random(2)

    async def slow(key: str, offset: int) -> None:
        await fake_clock.sleep(random.random())

    async def first_done(context: EventContext, key: str, offset: int, _: object) -> Incomplete:
        return second.schedule(context, key, offset)

    async def second_done(context: EventContext, key: str, offset: int, _: object) -> None:
        done.append((key, offset))

    first, second = JobScheduler(slow, first_done), JobScheduler(slow, second_done)

    async def handle(context: EventContext) -> Incomplete:
        return first.schedule(context, context.key, context.message.offset)

    await run(
        log,
        fake_clock,
        handle,
        first,
        second,
        look=lambda offset: commits.append((offset, len(done))),
        commits=Commits(every=0.01),
    )
    for key in "ab":
        mine = [offset for each, offset in done if each == key]
        assert mine == sorted(mine)
        assert len(mine) == 4
    assert all(count >= offset for offset, count in commits)
    assert log.positions[P0] == Position(8)


async def test_events_far_beyond_the_room_wait_and_do_not_deadlock(fake_clock: FakeClock) -> None:
    """G-T15: two partitions, few keys, chained stages, and limits of a few jobs."""
    count = 5_000
    log = MemoryLog(
        [*records([n % 7 for n in range(count)]), *records([n % 7 for n in range(count)], 1)]
    )
    most = 0

    async def process(key: object, value: object) -> None:
        nonlocal most
        stats = first.stats()
        most = max(most, stats.waiting + stats.running + stats.without_room)
        await fake_clock.sleep(0)

    async def chain(context: EventContext, key: object, value: object, _: object) -> Incomplete:
        return second.schedule(context, key, value)

    first = JobScheduler(process, chain, concurrency=2, max_keys=3, max_per_key=2)
    second = JobScheduler(process, concurrency=1, max_keys=1, max_per_key=1)

    async def handle(context: EventContext) -> Incomplete:
        return first.schedule(context, (context.partition.partition, context.key), None)

    report = await run(log, fake_clock, handle, first, second, in_flight=100)
    assert report.counts.acked == 2 * count
    assert most <= 3 * (1 + 2) + 2


async def test_an_event_without_room_holds_up_its_partition_only(fake_clock: FakeClock) -> None:
    """consumer/G21: finalisers of its partition run meanwhile."""
    log = MemoryLog([*records("aab"), *records("c", partition=1)])
    gate, seen = asyncio.Event(), list[object]()

    async def process(key: str, value: object) -> None:
        if value == 0:
            await gate.wait()

    async def finalise(context: EventContext, key: str, value: object, _: object) -> None:
        seen.append((key, value))

    jobs = JobScheduler(process, finalise, concurrency=3, max_keys=3, max_per_key=1)

    async def handle(context: EventContext) -> Incomplete:
        seen.append(f"handle {context.key}")
        key, value = context.key, context.message.offset
        if context.partition == P1:
            value = 10
        return jobs.schedule(context, key, value)

    source = MemorySource(log, clock=fake_clock)
    async with (
        Consumer(source, ordering="partition", clock=fake_clock) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(consumer.run_events(handle, jobs=[jobs]))
        await fake_clock.advance(1.0)
        assert ("c", 10) in seen
        assert ("b", 2) in seen
        log.append(records("a", first=3)[0])
        log.append(records("d", first=4)[0])
        await fake_clock.advance(1.0)
        assert "handle d" not in seen
        assert jobs.stats().without_room == 1
        gate.set()
        await fake_clock.advance(1.0)
        assert ("a", 3) in seen
        assert seen[-1] == ("d", 4)
        consumer.stop()
        report = await running
    assert report.counts.acked == 6


async def test_what_is_inside_at_the_end_is_finished_or_told(fake_clock: FakeClock) -> None:
    """G-T14: finished within the drain, otherwise left; nothing is accepted after the end."""
    started, never = list[int](), asyncio.Event()

    async def process(key: str, offset: int) -> None:
        started.append(offset)
        if offset == 1:
            await never.wait()
        await fake_clock.sleep(0.5)

    jobs = JobScheduler(process, concurrency=1)
    contexts: list[EventContext] = []

    async def handle(context: EventContext) -> Incomplete:
        contexts.append(context)
        return jobs.schedule(context, context.key, context.message.offset)

    log = log_of("a", "b", "c")
    source = MemorySource(log, clock=fake_clock)
    async with (
        Consumer(source, ordering="partition", clock=fake_clock, drain=2.0) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(consumer.run_events(handle, jobs=[jobs]))
        await fake_clock.advance(0.1)
        consumer.stop()
        report = await running
    assert started == [0, 1]
    assert sorted(each.offset for each in report.unfinished) == [1, 2]
    assert log.positions[P0].offset == 1
    with pytest.raises(ClosedError):
        jobs.schedule(contexts[0], "a", 0)


async def test_a_failing_finaliser_is_tried_again_alone(fake_clock: FakeClock) -> None:
    """consumer/G2: handler and job are not repeated, and the partition waits."""
    seen: list[str] = []

    async def process(key: str, value: object) -> None:
        seen.append(f"process {key}")

    async def finalise(context: EventContext, key: str, value: object, _: object) -> None:
        seen.append(f"finalise {key}")
        if seen.count("finalise a") < 3:
            raise ConnectionError("busy")

    jobs = JobScheduler(process, finalise)

    async def handle(context: EventContext) -> Incomplete:
        seen.append(f"handle {context.key}")
        return jobs.schedule(context, context.key, None)

    await run(log_of("a", "b"), fake_clock, handle, jobs)
    assert seen.count("handle a") == seen.count("process a") == 1
    assert seen.count("finalise a") == 3
    assert seen.index("finalise b") > seen.index("finalise a") + 2


async def test_the_raw_primitive(fake_clock: FakeClock) -> None:
    """consumer/G1, G-T18: the event completes when its finaliser says so, however early or late it
    is called.
    """
    log, kept = log_of("early", "late", "twice", "plain"), list[EventContext]()
    finished: list[str] = []

    async def finish(context: EventContext) -> None:
        finished.append(context.key)

    async def again(context: EventContext) -> Incomplete:
        context.job_complete(finish)
        return Incomplete()

    async def handle(context: EventContext) -> Incomplete | None:
        if context.key == "plain":
            return None
        if context.key == "early":
            assert context.job_complete(finish)
            assert not context.job_complete(finish)
        kept.append(context)
        return Incomplete()

    source = MemorySource(log, clock=fake_clock)
    async with (
        Consumer(source, ordering="partition", clock=fake_clock) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(consumer.run_events(handle))
        await fake_clock.advance(1.0)
        assert finished == ["early"]
        await consumer.commit()
        assert log.positions[P0].offset == 1
        assert kept[1].job_complete(finish)
        assert kept[2].job_complete(again)
        await fake_clock.advance(0.0)
        assert finished == ["early", "late", "twice"]
        assert not kept[1].job_complete(finish)
        consumer.stop()
        report = await running
    assert report.counts.acked == 4
    assert log.positions[P0].offset == 4


async def test_an_event_that_passes_its_scheduler_by_is_refused(fake_clock: FakeClock) -> None:
    """consumer/G8, G-T21: in debug mode, while earlier events of its key are inside."""
    gate = asyncio.Event()

    async def process(key: str, value: object) -> None:
        await gate.wait()

    jobs = JobScheduler(process, debug=True)

    async def handle(context: EventContext) -> Incomplete | None:
        if context.message.offset == 0:
            return jobs.schedule(context, context.key, None)
        return None

    source = MemorySource(log_of("a", "b", "a"), clock=fake_clock)
    async with (
        Consumer(source, ordering="partition", clock=fake_clock) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(consumer.run_events(handle, jobs=[jobs]))
        await fake_clock.advance(1.0)
        (blocked,) = consumer.blocked
        assert blocked.offset == 2
        assert "JobScheduler('jobs'" in str(blocked.error)
        gate.set()
        consumer.stop()
        await running


async def test_a_deaf_job_of_a_lost_claim_keeps_its_key_and_counts_for_nothing(
    fake_clock: FakeClock,
) -> None:
    """G-T16, consumer/C:N3: its key waits until it ends, and its event runs again. The job ignores
    its cancellation, as a thread does.
    """
    log, running_jobs = log_of("a"), list[int]()
    gates, most, finals = [asyncio.Event(), asyncio.Event()], 0, 0

    async def process(key: str, value: int) -> None:
        nonlocal most
        running_jobs.append(value)
        most = max(most, len(running_jobs))
        try:
            await gates[value].wait()
        except asyncio.CancelledError:
            await gates[value].wait()
        running_jobs.remove(value)

    async def finalise(*_: object) -> None:
        nonlocal finals
        finals += 1

    jobs, tries = JobScheduler(process, finalise), 0

    async def handle(context: EventContext) -> Incomplete:
        nonlocal tries
        tries += 1
        return jobs.schedule(context, context.key, tries - 1)

    source = MemorySource(log, clock=fake_clock)
    async with (
        Consumer(source, ordering="partition", clock=fake_clock) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        run = tasks.create_task(consumer.run_events(handle, jobs=[jobs]))
        await fake_clock.advance(1.0)
        source.lose([P0])
        source.assign([P0])
        await fake_clock.advance(1.0)
        assert tries == 2
        assert running_jobs == [0]
        gates[0].set()
        await fake_clock.advance(0.0)
        assert running_jobs == [1]
        assert finals == 0
        gates[1].set()
        await fake_clock.advance(0.0)
        consumer.stop()
        report = await run
    assert (most, finals, report.counts.acked, report.counts.stale) == (1, 1, 1, 1)
    assert log.positions[P0] == Position(1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"concurrency": 0}, "concurrency=0: must be a whole number of at least 1"),
        ({"max_per_key": 0}, "max_per_key=0: must be a whole number of at least 1"),
        ({"concurrency": 5, "max_keys": 4}, "max_keys=4: must be at least concurrency, 5"),
        ({"kind": "quick"}, "kind='quick': must be one of 'compute'"),
    ],
)
def test_bad_bounds_are_refused(options: dict[str, Any], told: str) -> None:
    """G-T17: the error names the argument, the value and the rule."""
    with pytest.raises(ConfigError, match=told):
        JobScheduler(lambda key, value: None, **options)


def test_functions_are_checked() -> None:
    """G-T17: before anything runs."""
    with pytest.raises(ConfigError, match="must be a function of a key and a value"):
        JobScheduler(lambda key: None)  # type: ignore[arg-type, misc]
    with pytest.raises(ConfigError, match="must be a function of a context, a key, a value and an"):
        JobScheduler(lambda key, value: None, lambda context: None)  # type: ignore[arg-type, misc]


async def test_bounds_change_while_it_runs(fake_clock: FakeClock) -> None:
    """consumer/G20: more jobs run concurrently from then on."""
    most = running = 0

    async def process(key: int, value: object) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await fake_clock.sleep(1.0)
        running -= 1

    jobs = JobScheduler(process, concurrency=1)

    async def handle(context: EventContext) -> Incomplete:
        if context.message.offset == 5:
            jobs.set_bounds(concurrency=4)
        return jobs.schedule(context, context.message.offset, None)

    await run(log_of(*range(12)), fake_clock, handle, jobs)
    assert most == 4


async def test_where_an_incomplete_event_stands_is_told(fake_clock: FakeClock) -> None:
    """consumer/C:N5: it waits for its job; the places add up to the messages inside."""
    gate = asyncio.Event()

    async def process(key: str, value: object) -> None:
        await gate.wait()

    jobs = JobScheduler(process)

    async def handle(context: EventContext) -> Incomplete:
        return jobs.schedule(context, context.key, None)

    source = MemorySource(log_of("a", "b"), clock=fake_clock)
    async with (
        Consumer(source, ordering="partition", clock=fake_clock) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        running = tasks.create_task(consumer.run_events(handle, jobs=[jobs]))
        await fake_clock.advance(2.0)
        (partition,) = consumer.explain().partitions
        assert "waiting for its job" in str(partition.causes[0])
        inside = consumer.stats().in_flight
        assert (inside.messages, inside.manual, inside.waiting) == (2, 2, 0)
        assert jobs.stats().running == 2
        gate.set()
        consumer.stop()
        await running
