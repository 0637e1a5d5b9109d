"""Rows of unknown outcome at a destination that cannot verify them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from piping import Destination, piped, records

from penstock import Limits, UnknownOutcomeError, UnverifiableError
from penstock.sources.memory import MemoryLog

if TYPE_CHECKING:
    from penstock import Batch
    from penstock.testing import FakeClock


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
