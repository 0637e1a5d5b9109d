"""Reads rows of Parquet as `dict` of Python values. Blocks.

Rows are numbered across all row groups. Row groups before the first row are not read. A row with a
value that Python does not have, such as a date before the year 1, is an `UndecodableRow`.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from ..._core.arrow import rows_of
from .readers import BrokenFile, RowChunk, UndecodableRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .readers import FileBytes

BATCH = 1_000
"""Maximum number of rows to decode in one call."""
BATCH_BYTES = 4 << 20
"""Maximum number of bytes to decode in one call, estimated by the mean row size of the file."""
BUFFER = 1 << 20
"""Bytes of a column to read in one call, regardless of the size of its row group."""
_NONE: list[Any] = []
_ERRORS: tuple[type[Exception], ...] = (BrokenFile, pa.ArrowException, OSError)


class ParquetReader:
    """Reads the rows from a start row on.

    Raises `BrokenFile` for a file without readable metadata.
    """

    def __init__(self, file: FileBytes, start: int, *, column: str | None) -> None:
        self._file = file
        self._row = start
        try:
            self._parquet: Any = parquet.ParquetFile(
                file.raw, buffer_size=BUFFER, page_checksum_verification=True
            )
        except _ERRORS as error:
            raise BrokenFile(f"it is not readable Parquet ({error})") from error
        if column is not None and column not in self._parquet.schema_arrow.names:
            raise BrokenFile(f"it has no column {column!r}, which key= names")
        self.rows: int | None = self._parquet.metadata.num_rows
        self._rest: list[Any] = []
        self._batches = self._read_from(start)

    def _read_from(self, start: int) -> Iterator[list[Any]]:
        metadata = self._parquet.metadata
        groups: int = metadata.num_row_groups
        first = before = 0
        while first < groups and before + metadata.row_group(first).num_rows <= start:
            before += metadata.row_group(first).num_rows
            first += 1
        if first == groups:
            return
        left_out = start - before
        rows = self._rows_at_once()
        for batch in self._parquet.iter_batches(rows, row_groups=[*range(first, groups)]):
            if left_out < batch.num_rows:
                made, errors = rows_of(batch.slice(left_out))
                yield [
                    UndecodableRow(errors[at]) if at in errors else row
                    for at, row in enumerate(made)
                ]
            left_out = max(0, left_out - batch.num_rows)

    def _rows_at_once(self) -> int:
        metadata = self._parquet.metadata
        groups = range(metadata.num_row_groups)
        size = sum(metadata.row_group(each).total_byte_size for each in groups)
        fitting: int = BATCH_BYTES * metadata.num_rows // max(1, size)
        return max(1, min(BATCH, fitting))

    def read(self, most: int) -> RowChunk:
        """Read the next rows, from one batch."""
        try:
            rest = self._rest or next(self._batches, _NONE)
            if not rest:
                self._file.check_end()
        except _ERRORS as error:
            return RowChunk((), self._row, broken=f"it cannot be read ({error})")
        taken, self._rest = rest[:most], rest[most:]
        rows = [*enumerate(taken, self._row)]
        self._row += len(rows)
        return RowChunk(rows, self._row, not rest)

    def close(self) -> None:
        """Close the file."""
        self._parquet.close()
        self._file.close()
