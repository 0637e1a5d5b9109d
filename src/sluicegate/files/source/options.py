"""The checked arguments of a source of files."""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..._core import checks
from ..._core.checks import bad
from ..._core.clock import CountedSignal, Signal
from .finding import FileSet, form_of, need_pyarrow
from .readers import CsvReader, FileBytes, LineReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from ..._core.clock import Clock
    from ..._core.source import ClaimHost
    from ..._core.subscriptions import SubscriptionLocks
    from .finding import Format, Recorded
    from .readers import RowReader


_FORMATS = ("auto", "ndjson", "csv", "parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """The files to read, and how to read them."""

    files: FileSet
    subscription: str
    format: Format | None
    key: str | Callable[[Any], object] | None
    csv_options: Mapping[str, Any]
    encoding: str
    files_at_once: int
    max_row_bytes: int
    ends: bool
    poll: float

    @classmethod
    def of(
        cls,
        path: object,
        *,
        subscription: object,
        format: str,  # noqa: A002  # named like the argument of the source
        key: object,
        csv_options: Mapping[str, Any] | None,
        encoding: str,
        files_at_once: int,
        max_row_bytes: int,
        ends: bool,
        poll: float | timedelta,
    ) -> FileOptions:
        """Check the arguments.

        Raises `ConfigError`, and `MissingExtra` for `format="parquet"` without pyarrow.
        """
        chosen = checks.choice("format", format, _FORMATS)
        if chosen == "parquet":
            need_pyarrow()
        rule = "must be the name of a column, or a function of a row's value"
        if key is not None and not isinstance(key, str):
            key = checks.function("key", key, rule)
        return cls(
            files=FileSet(_path(path)),
            subscription=checks.text("subscription", subscription),
            format=None if chosen == "auto" else cast("Format", chosen),
            key=cast("str | Callable[[Any], object] | None", key),
            csv_options=dict(csv_options or {}),
            encoding=_encoding(encoding),
            files_at_once=checks.count("files_at_once", files_at_once),
            max_row_bytes=checks.count("max_row_bytes", max_row_bytes),
            ends=checks.flag("ends", ends),
            poll=checks.seconds("poll", poll, usual=checks.LONG_DELAY),
        )

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
                    encoding=self.encoding,
                    column=column,
                )
            return LineReader(file, start, most_bytes=most)
        except BaseException:
            file.close()
            raise


def _path(path: object) -> str:
    text = str(path) if isinstance(path, Path) else path
    return checks.text("path", text)


def _encoding(encoding: str) -> str:
    try:
        ends_lines = "\n".encode(codecs.lookup(encoding).name) == b"\n"
    except (LookupError, TypeError):
        ends_lines = False
    if not ends_lines:
        raise bad("encoding", encoding, "must be an encoding with ASCII line ends")
    return encoding


def _no_key(_: object) -> None:
    return None


def _field(line: bytes, name: str) -> object:
    """Return a field of a line of JSON; `None` for invalid lines, which the decoder reports."""
    try:
        found: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", found).get(name) if isinstance(found, dict) else None


# -- shared objects --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileParts:
    """Options, the directory, the provider's locks, the host, the clock and the signals."""

    options: FileOptions
    root: Path
    locks: SubscriptionLocks | None
    host: ClaimHost
    clock: Clock
    news: Signal = field(default_factory=Signal)
    """Fires when there are rows to deliver, or at the end."""
    wake: CountedSignal = field(default_factory=CountedSignal)
    """Fires when the tasks should begin their next round."""
