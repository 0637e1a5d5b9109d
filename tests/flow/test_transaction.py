"""Rows and the source's position commit together, in order for each partition.

White box: the map beside a position is encoded.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kept_rows import KeptRows, KeptSink, kept
from piping import P0, P1, records

from sluicegate import (
    ConfigError,
    DeadLetter,
    FanOut,
    UnavailableError,
    UnknownOutcomeError,
    flow,
    stack,
)
from sluicegate.consumer import Commits, InFlight, MemoryLog, MemorySource, Poison, Position
from sluicegate.consumer.progress.offset_map import encode
from sluicegate.flow import commits
from sluicegate.sinks import MemorySink, Router

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import FakeClock


def offsets(rows: KeptRows, partition: int = 0) -> list[int]:
    """The offsets of the partition's rows, in commit order."""
    return [at for part, at in rows.offsets if part == partition]


async def test_every_record_is_committed_once_and_in_order(fake_clock: FakeClock) -> None:
    log = MemoryLog([*records(range(10)), *records(range(7), partition=1)])
    rows = KeptRows()
    pipe, _ = kept(log, KeptSink(rows), fake_clock)
    report = await pipe.run()
    assert report.complete
    assert offsets(rows) == list(range(10))
    assert offsets(rows, 1) == list(range(7))
    assert rows.positions == {("memory", P0): Position(10), ("memory", P1): Position(7)}
    assert not log.positions
    assert max(count for count, _ in rows.commits) == 4


async def test_a_restart_continues_behind_the_stored_position(fake_clock: FakeClock) -> None:
    log = MemoryLog(records(range(6)))
    rows = KeptRows()
    pipe, _ = kept(log, KeptSink(rows), fake_clock)
    await pipe.run()
    for record in records(range(3), first=6):
        log.append(record)
    again, _ = kept(log, KeptSink(rows), fake_clock)
    await again.run()
    assert offsets(rows) == list(range(9))


async def test_without_a_stored_position_it_begins_at_the_one_of_the_source(
    fake_clock: FakeClock,
) -> None:
    """With the position and the offset map that a consumer stored in the log."""
    log, rows = MemoryLog(records(range(8))), KeptRows()
    log.store({P0: Position(2, encode(2, [(4, 6)]).text)})
    pipe, _ = kept(log, KeptSink(rows), fake_clock, commits=Commits(every=0.1, after=1))
    await pipe.run()
    assert offsets(rows) == [2, 3, 6, 7]
    assert rows.commits[0] == (1, Position(3, encode(3, [(4, 6)]).text))
    assert rows.commits[1] == (1, Position(6))
    assert log.positions[P0].offset == 2


async def test_a_record_that_cannot_be_transformed_ends_the_flow(fake_clock: FakeClock) -> None:
    """S-T13: `poison="exit"` raises the error, and the records before it have committed."""

    def transform(message: Message) -> object:
        if message.offset == 2:
            raise ArithmeticError("no such currency")
        return message.record

    log, rows = MemoryLog(records(range(4))), KeptRows()
    pipe, _ = kept(log, KeptSink(rows), fake_clock, transform=transform, poison="exit")
    with pytest.raises(ArithmeticError, match="no such currency"):
        await pipe.run()
    assert offsets(rows) == [0, 1]
    assert rows.positions == {("memory", P0): Position(2)}


async def test_the_age_of_the_first_record_begins_a_transaction(fake_clock: FakeClock) -> None:
    log, rows = MemoryLog(records(range(3))), KeptRows()
    pipe, _ = kept(
        log, KeptSink(rows), fake_clock, ends=False, commits=Commits(every=10.0, after=100)
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(9.0)
        assert rows.commits == []
        await fake_clock.advance(1.5)
        assert rows.commits == [(3, Position(3))]
        pipe.stop()


async def test_the_bytes_of_records_end_a_transaction(fake_clock: FakeClock) -> None:
    log, rows = MemoryLog(records(range(6))), KeptRows()
    pipe, _ = kept(log, KeptSink(rows), fake_clock, commits=Commits(every=0.1, after=100, bytes=2))
    await pipe.run()
    assert [count for count, _ in rows.commits] == [2, 2, 2]


async def test_records_without_rows_move_the_position(fake_clock: FakeClock) -> None:
    log, rows = MemoryLog(records(range(6))), KeptRows()
    pipe, _ = kept(log, KeptSink(rows), fake_clock, transform=lambda message: None)
    await pipe.run()
    assert rows.commits == []
    assert rows.positions == {("memory", P0): Position(6)}


async def test_a_record_may_have_several_rows_in_one_transaction(
    fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "WRITE_SIZE", 2)
    log, rows = MemoryLog(records(range(3))), KeptRows()

    def three(message: Message) -> list[Any]:
        return [message.record] * 3

    sink = KeptSink(rows)
    pipe, _ = kept(log, sink, fake_clock, transform=three)
    await pipe.run()
    assert offsets(rows) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert rows.commits == [(9, Position(3))]
    assert sink.writes == 5


# -- records that cannot be written ----------------------------------------------------------------


@pytest.mark.parametrize("bad", [{0}, {3}, {1, 2}, {0, 4, 9}, set(range(10))], ids=str)
@pytest.mark.parametrize("by", ["row", "transform", "source"])
async def test_records_before_a_bad_one_commit_and_then_its_letter_is_written(
    fake_clock: FakeClock, bad: set[int], by: str
) -> None:
    """O-T18: whether the row, the transform or the source is the reason."""
    given = records(range(10), undecodable=bad if by == "source" else ())
    log, rows, letters = MemoryLog(given), KeptRows(), MemorySink[Any]()
    sink = KeptSink(rows)

    def spoiled(message: Message) -> Any:
        if message.offset in bad:
            raise ValueError("spoiled")
        return message.record

    if by == "row":
        sink.refused = bad
    pipe, _ = kept(
        log,
        sink,
        fake_clock,
        transform=spoiled if by == "transform" else None,
        poison=Poison("skip", dead_letters=letters),
    )
    report = await pipe.run()
    assert report.complete
    assert offsets(rows) == [at for at in range(10) if at not in bad]
    assert [letter.item["offset"] for letter in letters.items] == sorted(bad)
    assert rows.positions == {("memory", P0): Position(10)}


async def test_no_position_passes_a_record_before_its_letter_is_written(
    fake_clock: FakeClock,
) -> None:
    log, rows, is_down = MemoryLog(records(range(6))), KeptRows(), True
    letters: list[Any] = []

    async def store(batch: Any) -> None:
        if is_down:
            raise UnavailableError("no letters now")
        letters.extend(batch)

    sink = KeptSink(rows)
    sink.refused = {2}
    pipe, _ = kept(log, sink, fake_clock, ends=False, poison=Poison("skip", dead_letters=store))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(20.0)
        assert offsets(rows) == [0, 1]
        assert rows.positions == {("memory", P0): Position(2)}
        is_down = False
        await fake_clock.advance(60.0)
        assert len(letters) == 1
        assert offsets(rows) == [0, 1, 3, 4, 5]
        pipe.stop()


async def test_a_blocked_record_holds_its_partition_alone(fake_clock: FakeClock) -> None:
    log = MemoryLog([*records(range(6)), *records(range(6), partition=1)])
    rows = KeptRows()
    sink = KeptSink(rows)

    def spoiled(message: Message) -> Any:
        if message.partition == 0 and message.offset == 3:
            raise ValueError("spoiled")
        return message.record

    pipe, _ = kept(log, sink, fake_clock, ends=False, transform=spoiled)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(10.0)
        assert offsets(rows) == [0, 1, 2]
        assert offsets(rows, 1) == list(range(6))
        assert rows.positions["memory", P0] == Position(3)
        assert [each.offset for each in pipe.blocked] == [3]
        assert pipe.unblock(None, partition=P0, action="skip") == 1
        await fake_clock.advance(10.0)
        assert offsets(rows) == [0, 1, 2, 4, 5]
        pipe.stop()


# -- commits whose outcome is unknown --------------------------------------------------------------


@pytest.mark.parametrize("is_applied", [True, False])
async def test_a_lost_answer_is_found_out_by_reading_the_position(
    fake_clock: FakeClock, is_applied: bool
) -> None:
    log, rows = MemoryLog(records(range(10))), KeptRows()
    sink, failures = KeptSink(rows), 0

    async def lose() -> None:
        nonlocal failures
        failures += 1
        if failures == 2:
            raise UnknownOutcomeError("no answer to the COMMIT")

    if is_applied:
        sink.after_commit = lose
    else:
        sink.before_commit = lose
    pipe, _ = kept(log, sink, fake_clock)
    report = await pipe.run()
    assert report.complete
    assert offsets(rows) == list(range(10))
    assert sink.reads == 1


async def test_a_record_that_a_doubtful_commit_has_passed_is_not_written_in_another_batch(
    fake_clock: FakeClock,
) -> None:
    """The next attempt's batch can differ: it is longer by then."""
    log, rows = MemoryLog(records(range(2))), KeptRows()
    sink, failures = KeptSink(rows), 0

    async def lose() -> None:
        nonlocal failures
        failures += 1
        if failures == 1:
            for record in records(range(4), first=2):
                log.append(record)
            raise UnknownOutcomeError("no answer to the COMMIT")

    sink.after_commit = lose
    pipe, _ = kept(log, sink, fake_clock, ends=False, commits=Commits(every=0.1, after=10))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(10.0)
        pipe.stop()
    assert offsets(rows) == list(range(6))


async def test_nothing_is_written_while_the_position_cannot_be_read(
    fake_clock: FakeClock,
) -> None:
    """No position is stored either, for example for records without rows."""
    log, rows = MemoryLog(records(range(8))), KeptRows()
    sink, is_up = KeptSink(rows), False

    def second_half(message: Message) -> Any:
        return None if message.offset < 4 else message.record

    async def lose() -> None:
        raise UnknownOutcomeError("no answer to the COMMIT")

    async def down() -> None:
        if not is_up:
            raise UnavailableError("the database is down")

    sink.after_commit = lose
    sink.before_read = down
    pipe, _ = kept(log, sink, fake_clock, ends=False, transform=second_half)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(120.0)
        assert sink.reads > 3
        assert sink.writes == 1
        assert sink.stores == []
        is_up = True
        await fake_clock.advance(60.0)
        assert pipe.stats().counts.acked == 8
        pipe.stop()
    assert offsets(rows) == [4, 5, 6, 7]
    assert rows.positions == {("memory", P0): Position(8)}


# -- owners ----------------------------------------------------------------------------------------


async def test_nothing_of_a_claim_lands_after_another_owner_has_taken_it_over(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """P2: the zombie's commit finds a newer epoch; the flow reports it once and waits."""
    log, rows = MemoryLog(records(range(8))), KeptRows()
    zombie, frozen = KeptSink(rows), asyncio.Event()
    zombie.before_commit = frozen.wait
    first, source = kept(log, zombie, fake_clock, ends=False)
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(first.run())
        await fake_clock.advance(1.0)
        assert zombie.writes == 1
        second, _ = kept(MemoryLog(records(range(8))), KeptSink(rows), fake_clock)
        await second.run()
        frozen.set()
        await fake_clock.advance(60.0)
        assert offsets(rows) == list(range(8))
        assert sum("is lost" in each.getMessage() for each in caplog.records) == 1
        source.lose([P0])
        first.stop()
    assert run.result().complete
    assert offsets(rows) == list(range(8))


async def test_a_lost_claim_does_not_hold_up_a_revoke(fake_clock: FakeClock) -> None:
    log, rows = MemoryLog(records(range(8))), KeptRows()
    sink = KeptSink(rows)
    pipe, source = kept(log, sink, fake_clock, ends=False, drain=30.0)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(1.0)
        await KeptSink(rows).claim_positions("memory", [P0])
        for record in records(range(4), first=8):
            log.append(record)
        await fake_clock.advance(5.0)
        began = fake_clock.now()
        revoke = tasks.create_task(source.revoke([P0]))
        await fake_clock.advance(2.0)
        assert revoke.done()
        assert fake_clock.now() - began < 5.0
        pipe.stop()
    assert offsets(rows) == list(range(8))


async def test_a_partition_that_moves_to_another_member_is_continued_there(
    fake_clock: FakeClock,
) -> None:
    log, rows = MemoryLog(records(range(12))), KeptRows()
    sinks = [KeptSink(rows), KeptSink(rows)]
    first, source = kept(log, sinks[0], fake_clock, ends=False)
    second, other = kept(log, sinks[1], fake_clock, ends=False)

    async def take_a_while() -> None:
        await fake_clock.sleep(1.0)

    sinks[0].before_commit = take_a_while
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(first.run())
        await fake_clock.advance(1.5)
        tasks.create_task(second.run())
        await fake_clock.advance(0.1)
        moving = tasks.create_task(source.give([P0], other))
        await fake_clock.advance(20.0)
        assert moving.done()
        first.stop()
        second.stop()
    assert offsets(rows) == list(range(12))


async def test_a_claim_that_cannot_be_taken_over_is_reported_and_tried_again(
    fake_clock: FakeClock,
) -> None:
    log, rows = MemoryLog(records(range(4))), KeptRows()
    sink, is_up = KeptSink(rows), False

    async def down() -> None:
        if not is_up:
            raise UnavailableError("the database is down")

    sink.before_claim = down
    pipe, _ = kept(log, sink, fake_clock, ends=False)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(2.0)
        assert not pipe.ready
        assert "the database is down" in str(pipe.explain())
        is_up = True
        await fake_clock.advance(2.0)
        assert pipe.ready
        assert offsets(rows) == list(range(4))
        pipe.stop()


# -- the end ---------------------------------------------------------------------------------------


async def test_a_drain_commits_what_is_inside(fake_clock: FakeClock) -> None:
    log, rows = MemoryLog(records(range(3))), KeptRows()
    pipe, _ = kept(
        log, KeptSink(rows), fake_clock, ends=False, commits=Commits(every=60.0, after=100)
    )
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(pipe.run())
        await fake_clock.advance(1.0)
        pipe.stop()
    assert run.result().complete
    assert offsets(rows) == [0, 1, 2]
    assert rows.positions == {("memory", P0): Position(3)}


async def test_a_drain_that_is_too_short_rolls_back(fake_clock: FakeClock) -> None:
    log, rows = MemoryLog(records(range(3))), KeptRows()
    sink, never = KeptSink(rows), asyncio.Event()
    sink.before_commit = never.wait
    pipe, _ = kept(log, sink, fake_clock, ends=False, drain=2.0)
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(pipe.run())
        await fake_clock.advance(1.0)
        pipe.stop()
        await fake_clock.advance(3.0)
    assert {each.offset for each in run.result().unfinished} == {0, 1, 2}
    assert rows.rows == []
    again, _ = kept(log, KeptSink(rows), fake_clock)
    await again.run()
    assert offsets(rows) == [0, 1, 2]


async def test_a_transform_that_waits_for_its_service_in_a_drain_loses_no_record(
    fake_clock: FakeClock,
) -> None:
    log, rows = MemoryLog(records(range(4))), KeptRows()

    def look_up(message: Message) -> Any:
        if message.offset == 2:
            raise UnavailableError("the registry is down")
        return message.record

    pipe, _ = kept(log, KeptSink(rows), fake_clock, ends=False, transform=look_up, drain=60.0)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(5.0)
        pipe.stop()
        await fake_clock.advance(60.0)
    assert offsets(rows) == [0, 1]
    assert rows.positions == {("memory", P0): Position(2)}


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (MemorySink[Any](), "keeps no positions of a source.*flow.pipe"),
        (lambda batch: None, "keeps no positions"),
        (
            stack(KeptSink(KeptRows()), DeadLetter(MemorySink[Any]())),
            r"Poison\(dead_letters=...\) of flow",
        ),
        (FanOut(KeptSink(KeptRows()), KeptSink(KeptRows())), "keeps no positions"),
        (Router(str, {"a": KeptSink(KeptRows())}), "keeps no positions"),
    ],
)
def test_a_sink_that_cannot_is_refused(sink: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        flow.transaction(MemorySource(MemoryLog()), sink)


@pytest.mark.parametrize(
    "options",
    [
        {"commits": 0.1},
        {"in_flight": InFlight(per_key=3)},
        {"concurrency": 0},
        {"poison": "park_key"},
        {"poison": "block_and_dead_letter"},
        {"retry": 3},
    ],
    ids=str,
)
def test_a_bad_argument_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        flow.transaction(MemorySource(MemoryLog()), KeptSink(KeptRows()), **options)


def test_a_source_without_the_ability_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a source"):
        flow.transaction(MemoryLog(), KeptSink(KeptRows()))  # type: ignore[arg-type]
