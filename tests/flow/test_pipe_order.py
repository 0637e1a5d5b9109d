"""Order per key through failures: single cases, most of them found by `test_schedules.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from piping import Destination, piped, records

from penstock import Limits, UnknownOutcomeError
from penstock.sources.memory import MemoryLog

if TYPE_CHECKING:
    from penstock import Batch
    from penstock.testing import FakeClock


@pytest.mark.parametrize("key", [None, "a"])
async def test_rows_of_one_key_stay_in_order_after_an_unknown_outcome(
    fake_clock: FakeClock, key: str | None
) -> None:
    """A key of `None` is a key, too."""
    log = MemoryLog(records([key] * 8))
    sink = Destination()
    lost: list[int] = []

    async def before(batch: Batch[Any]) -> None:
        if len(lost) < 2:
            lost.append(1)
            raise UnknownOutcomeError("the answer was lost")

    sink.before = before
    limits = Limits(max_items=4, max_delay=0.1, workers=2)
    report = await piped(log, sink, fake_clock, limits=limits).run()
    assert sink.offsets == list(range(8))
    assert report.complete


@pytest.mark.parametrize("prefix_safe", [True, False])
async def test_a_record_whose_rows_wait_behind_its_own_failed_one_is_sent_again(
    fake_clock: FakeClock, prefix_safe: bool
) -> None:
    """Two rows of one key, of which one write at most has one if the sink is not prefix-safe."""
    log = MemoryLog(records("ab"))
    sink = Destination(prefix_safe=prefix_safe)
    lost: list[int] = []

    async def before(batch: Batch[Any]) -> None:
        if not lost:
            lost.append(1)
            raise UnknownOutcomeError("the answer was lost")

    def rows(message: Any) -> Any:
        return [(message.key, message.offset, part) for part in range(3)]

    sink.before = before
    limits = Limits(max_items=1, max_delay=0.1)
    pipe = piped(log, sink, fake_clock, limits=limits, transform=rows, key=lambda row: row[0])
    report = await pipe.run()
    assert [row for row in sink.applied if row[0] == "a"] == [("a", 0, part) for part in range(3)]
    assert len(sink.applied) == 6
    assert report.complete
