"""The read-ahead of a file.

White box: the reader with rows of the test, so that its memory is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluicegate._core.clock import Signal, wait_until
from sluicegate.consumer import Record
from sluicegate.files.source.readers import RowChunk
from sluicegate.files.source.reading import FileReading

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock


class Rows:
    """A file of ten chunks."""

    rows = None

    def __init__(self, size: int) -> None:
        self.size = size
        self.read_to = 0
        self.is_closed = False

    def read(self, most: int) -> RowChunk:
        rows = [(self.read_to + at, b"") for at in range(self.size)]
        self.read_to += self.size
        return RowChunk(rows, self.read_to, is_end=self.read_to == 10 * self.size)

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("size", [1, 3, 1_000])
async def test_at_most_two_chunks_wait(real_clock: LoopClock, size: int) -> None:
    """However few rows a chunk has, because they may be large."""
    rows, news = Rows(size), Signal()
    reading = FileReading(
        lambda: rows, lambda row, value: Record("t", 0, row, None, value), 0, news, Signal()
    )
    taken = 0
    while not reading.is_over:
        reading.fill()
        found = reading.take(1)
        if found is None:
            await wait_until(real_clock, real_clock.now() + 1.0, news)
            continue
        ((record,), _) = found
        assert record.offset == taken
        taken += 1
        await real_clock.sleep(0)
        assert rows.read_to - taken <= 2 * size
    assert taken == 10 * size
    await reading.close()
    assert rows.is_closed
