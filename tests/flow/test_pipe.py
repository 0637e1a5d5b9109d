"""Records in a pipe: their rows, order and positions."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from piping import P0, Destination, piped, records

from sluicegate import (
    Batcher,
    ClosedError,
    ConfigError,
    Limits,
    PermanentError,
    RetryPolicy,
    Terminate,
    UnknownOutcomeError,
    flow,
)
from sluicegate.consumer import MemoryLog, MemorySource, Poison, Skip
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import FakeClock


async def test_records_become_rows_in_order_per_key_and_positions_follow(
    fake_clock: FakeClock,
) -> None:
    log = MemoryLog(records("abcab" * 20))
    sink = Destination()
    report = await piped(log, sink, fake_clock).run()
    assert sorted(sink.offsets) == list(range(100))
    for key in "abc":
        mine = [row.offset for row in sink.applied if row.key == key]
        assert mine == sorted(mine)
    assert log.positions[P0].offset == 100
    assert report.complete
    assert report.positions == {P0: 100}
    assert report.source.counts.acked == 100
    assert report.batcher.tally.delivered == 100
    report.batcher.verify()


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_record_has_no_row_one_row_or_many(fake_clock: FakeClock, is_async: bool) -> None:
    log = MemoryLog(records("aabbc"))

    def rows(message: Any) -> Any:
        offset = message.offset
        return [None, {"n": 1}, [{"n": 2}, {"n": 3}], (n for n in "xy"), Skip()][offset]

    async def rows_later(message: Any) -> Any:
        await fake_clock.sleep(0.1)
        return rows(message)

    sink = Destination()
    transform = rows_later if is_async else rows
    report = await piped(log, sink, fake_clock, transform=transform, key=str).run()
    assert sink.applied == [{"n": 1}, {"n": 2}, {"n": 3}, "x", "y"]
    assert log.positions[P0].offset == 5
    assert report.source.counts.skipped == 1
    assert report.source.counts.acked == 4
    assert report.batcher.tally.accepted == 5


async def test_a_transform_that_fails_makes_poison_of_its_record_alone(
    fake_clock: FakeClock,
) -> None:
    log = MemoryLog(records("aaaa"))
    letters: MemorySink[Any] = MemorySink()

    def decode(message: Any) -> Any:
        if message.offset == 1:
            raise ValueError("no JSON")
        if message.offset == 2:
            return Terminate("not wanted")
        return json.loads(message.value)

    sink = Destination()
    pipe = piped(
        log,
        sink,
        fake_clock,
        transform=decode,
        key=str,
        poison=Poison("skip", dead_letters=letters),
    )
    report = await pipe.run()
    assert sink.applied == [0, 3]
    assert [letter.message for letter in letters.items] == ["no JSON", "not wanted"]
    assert log.positions[P0].offset == 4
    assert report.source.counts.dead_lettered == 2


async def test_an_unknown_outcome_holds_its_key_and_is_sent_again_first(
    fake_clock: FakeClock,
) -> None:
    """Later rows of the key wait; other keys continue."""
    log = MemoryLog(records("abababab"))
    sink = Destination(prefix_safe=False)
    marks: list[frozenset[int]] = []
    cut: list[int] = []

    async def before(batch: Batch[Any]) -> None:
        offsets = [row.offset for row in batch]
        if 2 in offsets:
            marks.append(frozenset(offsets[i] for i in batch.maybe_applied))
            if not cut:
                cut.append(2)
                raise UnknownOutcomeError("the answer was lost")

    sink.before = before
    report = await piped(log, sink, fake_clock).run()
    assert [offset for offset in sink.offsets if offset % 2 == 0] == [0, 2, 4, 6]
    assert [offset for offset in sink.offsets if offset % 2 == 1] == [1, 3, 5, 7]
    assert not marks[0]
    assert 2 in marks[1]
    assert report.batcher.tally.unknown >= 1
    assert report.source.counts.acked == 8
    assert log.positions[P0].offset == 8


async def test_a_rejected_row_under_block_holds_its_key_and_the_position(
    fake_clock: FakeClock,
) -> None:
    log = MemoryLog(records("abab"))
    sink = Destination()
    repaired: list[bool] = []

    async def before(batch: Batch[Any]) -> None:
        if any(row.offset == 0 for row in batch) and not repaired:
            raise PermanentError("a constraint")

    sink.before = before
    pipe = piped(
        log,
        sink,
        fake_clock,
        ends=False,
        limits=Limits(max_items=1, max_delay=0.1),
        poison="block",
        retry=RetryPolicy(attempts=3),
    )
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(pipe.run())
        await fake_clock.advance(5.0)
        assert sink.offsets == [1, 3]
        assert [each.offset for each in pipe.blocked] == [0]
        assert log.start(P0).offset == 0
        assert len([write for write in sink.writes if write[0].offset == 0]) == 3
        assert "blocked" in str(pipe.explain())
        repaired.append(True)
        assert pipe.unblock("a") == 1
        await fake_clock.advance(5.0)
        assert sink.offsets == [1, 3, 0, 2]
        assert log.start(P0).offset == 4
        pipe.stop()
    assert run.result().complete


@pytest.mark.parametrize("strategy", ["skip", "block"])
async def test_a_row_of_unknown_outcome_is_never_given_up(
    fake_clock: FakeClock, strategy: Any
) -> None:
    """After the last attempt it blocks its key, whatever the strategy, until an operator
    decides.
    """
    log, sink, is_down = MemoryLog(records("aab")), Destination(), True

    async def before(batch: Batch[Any]) -> None:
        if is_down and any(row.key == "a" for row in batch):
            raise UnknownOutcomeError("the answer was lost")

    sink.before = before
    pipe = piped(
        log,
        sink,
        fake_clock,
        ends=False,
        limits=Limits(max_items=1, max_delay=0.0),
        retry=RetryPolicy(attempts=3),
        poison=Poison(strategy, dead_letters=None if strategy == "block" else MemorySink()),
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await pipe.wait_ready()
        await fake_clock.advance(60.0)
        assert [write[0].offset for write in sink.writes if write[0].key == "a"] == [0, 0, 0]
        assert [each.offset for each in pipe.blocked] == [0]
        assert log.start(P0).offset == 0
        is_down = False
        pipe.unblock("a")
        await fake_clock.advance(5.0)
        assert sink.offsets == [2, 0, 1]
        assert log.start(P0).offset == 3
        pipe.stop()


async def test_waiting_for_a_pipe_that_cannot_open_ends(fake_clock: FakeClock) -> None:
    async def unopened(batch: Batch[Any]) -> None: ...

    batcher = Batcher(unopened, clock=fake_clock)
    async with batcher:
        pipe = flow.pipe(MemorySource(MemoryLog(), clock=fake_clock), batcher)
        waiting = asyncio.ensure_future(pipe.wait_ready())
        with pytest.raises(ConfigError, match="opens and closes its batcher"):
            await pipe.run()
        with pytest.raises(ClosedError):
            await waiting
