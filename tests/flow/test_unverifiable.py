"""Rows of unknown outcome that the destination cannot verify, or of which it holds other contents."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from piping import P0, Destination, key_of, piped, records

from sluicegate import Backoff, Batcher, Limits, Retry, UnknownOutcomeError, stack
from sluicegate.consumer import MemoryLog, Poison
from sluicegate.errors import StoredRowDiffers, UnverifiableError
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import FakeClock


async def test_rows_that_cannot_be_verified_are_sent_again_as_new_ones(
    fake_clock: FakeClock,
) -> None:
    """A restart would do the same; otherwise the key would wait forever."""
    log = MemoryLog(records("aaa"))
    sink = Destination()

    async def before(batch: Batch[Any]) -> None:
        if len(sink.writes) == 1:
            sink.applied += batch
            raise UnknownOutcomeError("the answer was lost")
        if batch.maybe_applied:
            raise UnverifiableError("no unique key")

    sink.before = before
    limits = Limits(max_items=1, max_delay=0.1)
    report = await piped(log, sink, fake_clock, limits=limits).run()
    assert sink.offsets == [0, 0, 1, 2]
    assert report.complete
    assert report.batcher.tally.unknown == 2
    assert report.source.counts.acked == 3


@pytest.mark.parametrize("has_letters", [False, True])
async def test_a_record_whose_stored_row_differs_is_poison_and_never_skipped(
    fake_clock: FakeClock, *, has_letters: bool
) -> None:
    """One write after the lost answer, whatever the attempts. With `skip`, its letter says that it
    may be applied; without letters it is blocked, and verified once more when it is released.
    """
    log, sink = MemoryLog(records("aba")), Destination()
    letters: MemorySink[Any] = MemorySink()
    differs = True

    async def before(batch: Batch[Any]) -> None:
        if [row.offset for row in batch] != [0]:
            return
        if not batch.maybe_applied:
            raise UnknownOutcomeError("the answer was lost")
        if differs:
            raise StoredRowDiffers("the stored row has other contents")

    sink.before = before
    batcher = Batcher(
        stack(sink, Retry(attempts=4, backoff=Backoff(base=0.1, jitter="none"))),
        key=key_of,
        limits=Limits(max_items=1, max_delay=0.1),
        clock=fake_clock,
    )
    poison = Poison("skip", dead_letters=letters if has_letters else None)
    pipe = piped(log, sink, fake_clock, batcher=batcher, ends=False, poison=poison)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pipe.run())
        await fake_clock.advance(60.0)
        tries = [[row.offset for row in rows] for rows in sink.writes].count([0])
        assert tries == 2
        marks = [(each.batch_id, each.error_type, each.maybe_delivered) for each in letters.items]
        assert marks == ([("t/0@0", "StoredRowDiffers", True)] if has_letters else [])
        assert sink.offsets == ([1, 2] if has_letters else [1])
        assert bool(pipe.blocked) is not has_letters
        if not has_letters:
            assert log.start(P0).offset == 0
            differs = False
            assert pipe.unblock("a") == 1
            await fake_clock.advance(60.0)
            assert sink.offsets == [1, 0, 2]
        pipe.stop()
    tally = batcher.tally()
    assert tally.unknown >= 1
    assert tally.duplicate == 0
