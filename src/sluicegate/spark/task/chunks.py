"""Chunks: a stream of record batches divided into one part for each write.

1. Cuts depend on the rows alone, by count and bytes, and never on time. So a partition that is
   computed again is cut in the same places, and a chunk's number together with its partition can be
   an idempotency key.
2. With keys, the rows of a key are adjacent. A chunk ends where a key ends, so several chunks may
   be in flight without sharing a key. A key larger than a chunk is cut nevertheless; the next chunk
   is marked as its continuation, and must wait for this one.
3. Keys are equal as Spark groups them: NULL equals NULL, NaN equals NaN, 0.0 equals -0.0. Only
   Spark can compare texts under a collation, so with such a key (`serial`) every chunk waits for
   the previous one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

pc: Any = compute  # its functions are created at import, so type checkers do not see them


@dataclass(frozen=True, slots=True)
class Chunk:
    """The rows of one write."""

    number: int
    """The number within the partition, from 0."""
    rows: pa.RecordBatch
    continues: bool = False
    """Whether its first key is also the last key of the previous chunk."""
    mark: str = ""
    """The hash of its rows as text, the last part of its batch's id."""


def cut(
    batches: Iterable[pa.RecordBatch],
    *,
    max_rows: int,
    max_bytes: int,
    key: Sequence[str] = (),
    serial: bool = False,
) -> Iterator[Chunk]:
    """Cut `batches` into chunks of at most `max_rows` rows and about `max_bytes` bytes.

    Reads a batch when its rows are needed, and holds the rows of two chunks at most. Batches
    without rows are skipped.

    Args:
        batches: record batches with the same columns.
        max_rows: the maximum number of rows of a chunk.
        max_bytes: the size of a chunk in Arrow, estimated by the average row; at least one row.
        key: columns by which the rows are grouped. A chunk ends between two keys unless one key has
            more rows than fit; the next chunk then `continues` it.
        serial: whether different values of `key` may be the same key; each chunk then `continues`
            the one before.
    """
    held: list[pa.RecordBatch] = []
    rows = size = number = 0
    before: pa.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        while rows > max_rows or (size > max_bytes and rows > 1):
            joined = _join(held)
            fitting = min(max_rows, max(1, int(rows * max_bytes / size)))
            place = _boundary(joined, fitting, key) if fitting < rows else rows
            if place == rows:
                held = [joined]
                break
            chunk = joined.slice(0, place)
            yield Chunk(number, chunk, _continues(before, chunk, key, serial=serial))
            number, before = number + 1, chunk
            rest = joined.slice(place)
            held, rows = [rest], rest.num_rows
            size = rest.nbytes
    if rows:
        chunk = _join(held)
        yield Chunk(number, chunk, _continues(before, chunk, key, serial=serial))


def _boundary(rows: pa.RecordBatch, limit: int, key: Sequence[str]) -> int:
    """Find the cut: the last change of the key up to `limit`, or `limit` inside a larger key."""
    if not key:
        return limit
    changes = key_changes(rows.slice(0, limit + 1), key)  # the end of the rows is not a change
    places = np.flatnonzero(changes)
    return int(places[-1]) + 1 if len(places) else limit


def _continues(
    before: pa.RecordBatch | None, chunk: pa.RecordBatch, key: Sequence[str], *, serial: bool
) -> bool:
    """Return whether the first key of `chunk` is, or may be, the last key of the previous chunk."""
    if before is None:
        return False
    if serial or not key:
        return serial
    ends = [
        before.select(list(key)).slice(before.num_rows - 1),
        chunk.select(list(key)).slice(0, 1),
    ]
    return not key_changes(_join(ends), key)[0]


def key_changes(rows: pa.RecordBatch, key: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return, for each row except the last, whether the next row has another key."""
    last = max(rows.num_rows - 1, 0)
    changes = np.zeros(last, dtype=bool)
    for name in key:
        column = rows.column(name)
        if not pa.types.is_null(column.type):
            changes |= _differ(column.slice(0, last), column.slice(1, last)).to_numpy(
                zero_copy_only=False
            )
    return changes


def _differ(before: Any, after: Any) -> Any:
    differs = pc.fill_null(pc.not_equal(before, after), False)
    if pa.types.is_floating(before.type):
        differs = pc.and_not(
            differs, pc.fill_null(pc.and_(pc.is_nan(before), pc.is_nan(after)), False)
        )
    return pc.or_(differs, pc.xor(pc.is_null(before), pc.is_null(after)))


def _join(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches)


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
