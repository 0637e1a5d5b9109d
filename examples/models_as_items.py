"""Models of pydantic, structs of msgspec and dataclasses as items: rows and lines by field names."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
from pydantic import BaseModel, Field, ValidationError

from sluicegate import Batcher, FanOut, Retry, stack
from sluicegate.files import FileSink
from sluicegate.sql import SqlSink


class Reading(BaseModel):
    sensor: str
    celsius: float = Field(ge=-273.15)


class Measured(msgspec.Struct):
    sensor: str
    celsius: float


@dataclass(frozen=True)
class Guessed:
    sensor: str
    celsius: float


async def main(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "readings.db")) as con:
        con.execute("CREATE TABLE readings (sensor TEXT, celsius REAL)")
    table = SqlSink(
        f"sqlite:///{folder / 'readings.db'}", table="readings", columns=["sensor", "celsius"]
    )
    lines = FileSink(folder / "readings.jsonl")
    sink = FanOut(stack(table, Retry()), stack(lines, Retry()))
    async with Batcher[Reading | Measured | Guessed](sink, name="readings") as batcher:
        for text in ('{"sensor": "a", "celsius": 21.5}', '{"sensor": "a", "celsius": -300}'):
            try:
                await batcher.add(Reading.model_validate_json(text))
            except ValidationError as error:
                print("not added:", error.errors()[0]["msg"])
        await batcher.add(Measured("b", 19.0))
        await batcher.add(Guessed("c", 20.25))
    print((folder / "readings.jsonl").read_text(), end="")
    with closing(sqlite3.connect(folder / "readings.db")) as con:
        print(con.execute("SELECT * FROM readings").fetchall())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
