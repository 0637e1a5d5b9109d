"""A lost position is claimed again while the group still has the partition assigned here.

White box: the intervals after which a position is claimed again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kept_rows import KeptRows, KeptSink, kept
from piping import P0, records

from sluicegate import ConfigError, UnavailableError
from sluicegate.consumer import MemoryLog, Poison, Position
from sluicegate.flow.positions import LOOK_AFTER, RECLAIM_AFTER
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock

PLACE = ("memory", P0)


def said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    """The number of log records with this text."""
    return sum(text in each.getMessage() for each in caplog.records)


async def test_a_lost_position_that_the_group_still_has_is_claimed_again(
    fake_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It was lost to a process that did not know yet that it had lost the partition."""
    log, rows = MemoryLog(records(range(4))), KeptRows()
    pipe, _ = kept(log, KeptSink(rows), fake_clock, ends=False)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(1.0)
        await KeptSink(rows).claim_positions("memory", [P0])
        for record in records(range(6), first=4):
            log.append(record)
        await fake_clock.advance(RECLAIM_AFTER - LOOK_AFTER)
        assert [at for _, at in rows.offsets] == list(range(4))
        assert said(caplog, "is lost") == 1
        assert rows.epochs[PLACE] == 2, "a revoke is waited for"
        await fake_clock.advance(10 * LOOK_AFTER)
        assert [at for _, at in rows.offsets] == list(range(10))
        assert rows.positions[PLACE] == Position(10)
        assert rows.epochs[PLACE] == 3
        assert said(caplog, "is claimed again; it continues at 4") == 1
        pipe.stop()


async def test_records_that_the_other_owner_has_committed_meanwhile_are_not_repeated(
    fake_clock: FakeClock,
) -> None:
    log, rows, other = MemoryLog(records(range(4))), KeptRows(), KeptSink(KeptRows())
    other.kept = rows
    pipe, _ = kept(log, KeptSink(rows), fake_clock, ends=False)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(1.0)
        await other.claim_positions("memory", [P0])
        for record in records(range(6), first=4):
            log.append(record)
        await fake_clock.advance(1.0)
        await other.store_positions("memory", {P0: Position(7)})
        await fake_clock.advance(RECLAIM_AFTER + 10 * LOOK_AFTER)
        assert [at for _, at in rows.offsets] == [0, 1, 2, 3, 7, 8, 9]
        assert pipe.stats().counts.acked == 10
        pipe.stop()


async def test_a_position_that_was_moved_back_is_not_taken_up_again_by_this_claim(
    fake_clock: FakeClock,
) -> None:
    """Its records are redelivered by the next claim only."""
    log, rows = MemoryLog(records(range(4))), KeptRows()
    pipe, source = kept(log, KeptSink(rows), fake_clock, ends=False)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(1.0)
        rows.positions[PLACE] = Position(2)
        for record in records(range(2), first=4):
            log.append(record)
        await fake_clock.advance(3 * RECLAIM_AFTER)
        assert [at for _, at in rows.offsets] == list(range(4))
        source.lose([P0])
        source.assign([P0])
        await fake_clock.advance(5.0)
        assert [at for _, at in rows.offsets] == [0, 1, 2, 3, 2, 3, 4, 5]
        pipe.stop()


@pytest.mark.parametrize("kind", [ConfigError, UnavailableError])
async def test_no_record_is_given_up_while_the_position_cannot_be_claimed_again(
    fake_clock: FakeClock, kind: type[Exception]
) -> None:
    """For example because the table was recreated: an operator decides."""
    log, rows, letters = MemoryLog(records(range(4))), KeptRows(), MemorySink[Any]()
    sink = KeptSink(rows)
    pipe, _ = kept(log, sink, fake_clock, ends=False, poison=Poison("skip", dead_letters=letters))

    async def refuse() -> None:
        raise kind("the table was dropped and made anew")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(1.0)
        await KeptSink(rows).claim_positions("memory", [P0])
        for record in records(range(6), first=4):
            log.append(record)
        sink.before_claim = refuse
        await fake_clock.advance(30 * RECLAIM_AFTER)
        assert letters.items == []
        sink.before_claim = None
        await fake_clock.advance(3 * RECLAIM_AFTER)
        assert [at for _, at in rows.offsets] == list(range(10))
        assert letters.items == []
        pipe.stop()
