"""Units of delivery: the rows of one key bucket of one version, and their names.

1. A bucket is a partition of `repartition(buckets, key)`. Spark puts every row of a key into it,
   whatever the partitions of the source, so a replay has the same rows under the same name. The
   partition of a task is unsuitable: it depends on the origin of a row.
2. The bucket's number travels with the rows, in a column added right after the shuffle. So there
   may be fewer tasks than buckets (`max_tasks`), and nothing depends on Spark's numbering of tasks.
3. A bucket without rows is not a unit: nothing is written, and nothing is stored about it.
4. A hash of each row travels with it (`driver.content`). It is removed and summed once, as the rows
   are read.
5. The id of a batch is the name `application:version:bucket` and the number of its chunk. Two
   attempts cut the same rows into the same chunks, so they send the same write keys: idempotency
   keys over HTTP, transactional ids for Kafka. If no ledger compares the rows, the hash of a
   chunk's rows is part of its id, so that a destination never accepts other rows under the same id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pyarrow import compute

from ..._core.transaction import Unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from ..values.chunks import Chunk

pc: Any = compute  # its functions are created at import, so type checkers do not see them

BUCKET = "sluicegate_bucket"
"""Column with the number of a row's bucket, from the driver to the task."""
CONTENT = "sluicegate_content"
"""Column with the hash of a row, from the driver to the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The units of one write."""

    application: str
    version: int
    buckets: int
    key: tuple[str, ...]
    in_transactions: bool
    """Whether each unit is a transaction; otherwise units only have names."""
    types: str = ""
    """The key's columns with their types, which determine the hash."""
    content_of: str = ""
    """The columns that are hashed for each row; empty if none."""
    buffer_bytes: int = 0
    """Bytes of a unit kept for a retry inside the task."""

    def unit(self, bucket: int) -> Unit:
        """Return the unit of one bucket."""
        rule = f"hash({', '.join(self.key)})"
        return Unit(
            application=self.application,
            version=self.version,
            part=bucket,
            parts=self.buckets,
            rule=rule,
            types=self.types,
        )


class Summed:
    """Record batches with their row hashes removed and summed."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self.total: int | None = None
        """The sum so far, as a signed number of 64 bits; `None` before the first hash."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        if CONTENT not in batch.schema.names:
            return batch
        hashes = batch.column(CONTENT).to_numpy().view(np.uint64)
        self.total = wrapped((self.total or 0) + int(hashes.sum(dtype=np.uint64)))
        return batch.drop_columns(CONTENT)


def marked(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Remove the row hashes from chunks; mark each chunk with the sum, if it had hashes."""
    for chunk in chunks:
        summed = Summed([chunk.rows])
        rows = next(summed)
        yield (
            chunk
            if summed.total is None
            else replace(chunk, rows=rows, mark=f"-{summed.total % 2**64:016x}")
        )


def wrapped(total: int) -> int:
    """Convert a sum of hashes to a signed number of 64 bits."""
    return (total + 2**63) % 2**64 - 2**63


def by_bucket(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Yield each bucket with its rows, without the bucket column.

    Read all rows of a bucket before the next bucket.
    """
    reading = _Reading(batches)
    while (bucket := reading.bucket()) is not None:
        yield bucket, reading.rows(bucket)


class _Reading:
    """Splits record batches where the bucket changes."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._left: pa.RecordBatch | None = None

    def bucket(self) -> int | None:
        """The bucket of the next row; `None` at the end."""
        while self._left is None or not self._left.num_rows:
            self._left = next(self._batches, None)
            if self._left is None:
                return None
        return int(self._left.column(BUCKET)[0].as_py())

    def rows(self, bucket: int) -> Iterator[pa.RecordBatch]:
        """The rows up to the next bucket."""
        while self.bucket() == bucket:
            held = self._left
            assert held is not None
            of_it = pc.sum(pc.equal(held.column(BUCKET), bucket)).as_py()
            self._left = held.slice(of_it)
            yield held.slice(0, of_it).drop_columns(BUCKET)


class Remembered:
    """Chunks that can be read again from the first one, while all chunks read so far fit the limit."""

    def __init__(self, chunks: Iterable[Chunk], limit: int) -> None:
        self._chunks = iter(chunks)
        self._limit = limit
        self._kept: list[Chunk] | None = []
        self._bytes = 0

    @property
    def fits(self) -> bool:
        """Whether the chunks can be read again."""
        return self._kept is not None

    def __iter__(self) -> Iterator[Chunk]:
        if self._kept is None:
            message = "these chunks were too large to keep"
            raise RuntimeError(message)
        yield from tuple(self._kept)
        for chunk in self._chunks:
            self._keep(chunk)
            yield chunk

    def _keep(self, chunk: Chunk) -> None:
        if self._kept is None:
            return
        self._bytes += chunk.rows.nbytes
        if self._bytes > self._limit:
            self._kept = None
        else:
            self._kept.append(chunk)
