"""The number of superseded rows, which is sent along with the written rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

SUPERSEDED = "sluicegate_superseded"
"""Column with the number of earlier, omitted rows of a row's key."""


class SupersededRows:
    """Record batches from which the numbers of superseded rows are removed and summed."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self.total = 0
        """The sum so far."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        if SUPERSEDED not in batch.schema.names:
            return batch
        self.total += int(batch.column(SUPERSEDED).to_numpy().sum(dtype=np.int64))
        return batch.drop_columns(SUPERSEDED)
