"""Rows and the source's position commit together, for each partition in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kept_rows import KeptRows, KeptSink, kept
from piping import P0, P1, records

from penstock.sources import Position
from penstock.sources.memory import MemoryLog

if TYPE_CHECKING:
    from penstock.testing import FakeClock


async def test_every_record_is_committed_once_and_in_order(fake_clock: FakeClock) -> None:
    log = MemoryLog([*records(range(10)), *records(range(7), partition=1)])
    rows = KeptRows()
    pipe, _ = kept(log, KeptSink(rows), fake_clock)
    report = await pipe.run()
    assert report.complete
    for partition, count in ((0, 10), (1, 7)):
        assert [at for part, at in rows.offsets if part == partition] == list(range(count))
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
    assert [at for _, at in rows.offsets] == list(range(9))
