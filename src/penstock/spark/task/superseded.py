"""The number of superseded rows, which travels beside the rows that are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

SUPERSEDED = "penstock_superseded"
"""Column with the number of earlier rows of a row's key, which are not written."""


class SupersededRows:
    """Record batches with the numbers of superseded rows removed and added up."""

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
