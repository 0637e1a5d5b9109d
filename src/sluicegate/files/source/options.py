"""The checked arguments of a source of files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from .finding import FileSet, form_of
from .readers import CsvReader, FileBytes, LineReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from .finding import Format, Recorded
    from .readers import RowReader


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """The files to read, and how to read them."""

    files: FileSet
    subscription: str
    format: Format | None
    key: str | Callable[[Any], object] | None
    csv_options: Mapping[str, Any]
    files_at_once: int
    max_row_bytes: int

    def keys(self, path: str) -> Callable[[Any], object]:
        """Return the function from a value of this file to its key."""
        key = self.key
        if key is None:
            return _no_key
        if not isinstance(key, str):
            return key
        if form_of(path, self.format).format == "ndjson":
            return lambda line: _field(line, key)
        return lambda row: row.get(key)

    def open(self, root: Path, recorded: Recorded, start: int) -> RowReader:
        """Open a file at a row. Blocks.

        Raises `BrokenFile`, `OSError` and the errors of `form_of`.
        """
        form = form_of(recorded.path, self.format)
        file = FileBytes(root / recorded.path, recorded, form.compression)
        column = self.key if isinstance(self.key, str) else None
        try:
            if form.format == "parquet":
                from .parquet_rows import ParquetReader  # an optional dependency

                return ParquetReader(file, start, column=column)
            most = self.max_row_bytes
            if form.format == "csv":
                return CsvReader(
                    file,
                    start,
                    most_bytes=most,
                    options=self.csv_options,
                    column=column,
                )
            return LineReader(file, start, most_bytes=most)
        except BaseException:
            file.close()
            raise


def _no_key(_: object) -> None:
    return None


def _field(line: bytes, name: str) -> object:
    """Return a field of a line of JSON; `None` for invalid lines, which the decoder reports."""
    try:
        found: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", found).get(name) if isinstance(found, dict) else None
