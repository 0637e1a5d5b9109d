"""Programs that load the same files into a table, each in a process of its own: timed, or killed
and started again with the same command.

1. A program prints a line before its work, and one after it or ends. What lies before is its start.
2. It is killed with all of its processes, as if its machine had failed, when the database has grown
   by a part of what a load adds: time would say little, since most of it passes before the first
   row.
3. The rows in the table are compared with those of the files in all columns. The comparison waits
   for transactions that the server has not given up yet.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

import psutil

from ..workers import ROOT
from .psql import Psql

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

FILES = 12
_SIZE = "pg_database_size(current_database())"


@dataclass(frozen=True, slots=True)
class Mover:
    """A command that loads the files, and the table that it fills."""

    name: str
    command: Sequence[str]
    table: str = "flights"
    is_ours: bool = False
    library: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """The seconds of a load: of the whole command, and without its start."""

    command: float
    work: float
    was_killed: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows of the files that are not in the table, and rows in the table that are not of the files
    or are there once more.
    """

    lost: int
    repeated: int


class Loading:
    """The files, and the database that they are loaded into."""

    def __init__(self, dsn: str, folder: Path, count: int) -> None:
        from examples.demo.flights import COLUMNS, FlightFile, find_file

        self.dsn = dsn
        self.state = folder / "state"
        self.parquet, self.csv = folder / "parquet", folder / "csv"
        self.psql = Psql(dsn)
        self._columns = ", ".join(column.name for column in COLUMNS)
        self._types = ", ".join(f"{column.name} {column.sql}" for column in COLUMNS)
        with FlightFile(find_file(), count) as flights:
            _write(flights, self.parquet, self.csv, count)
        self.psql.run("CREATE SCHEMA given", f"CREATE TABLE given.flights ({self._types})")
        subprocess.run(self.by_psql(schema="given"), stdout=subprocess.DEVNULL, check=True)

    def by_psql(self, *, schema: str = "public") -> list[str]:
        """Return the command of `psql` that copies all files in one transaction."""
        copies = (
            f"\\copy {schema}.flights FROM '{file}' (FORMAT csv, HEADER)"
            for file in sorted(self.csv.iterdir())
        )
        return [*self.psql.command("\\echo begin", *copies), "--single-transaction"]

    def clear(self) -> None:
        """Remove what earlier loads have left: rows, positions, and dlt's own folder."""
        shutil.rmtree(self.state, ignore_errors=True)
        self.psql.run(
            "DROP SCHEMA IF EXISTS by_dlt CASCADE",
            "DROP SCHEMA public CASCADE",
            "CREATE SCHEMA public",
            f"CREATE TABLE flights ({self._types})",
            "CHECKPOINT",
        )

    def size(self) -> int:
        """Return the bytes of the database, those of open transactions too."""
        return int(self.psql.run(f"SELECT {_SIZE}"))

    def load(self, mover: Mover, *, kill_at: int | None = None) -> Load:
        """Run the command, and kill it when the database has that size."""
        errors = self.parquet.parent / "errors"
        start = perf_counter()
        with (
            errors.open("w") as stderr,
            subprocess.Popen(
                mover.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=ROOT,
                env=_environment(),
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            _wait_for("begin", process.stdout)
            begin = perf_counter()
            with contextlib.nullcontext() if kill_at is None else self._killing(process, kill_at):
                _wait_for("done", process.stdout)
                done = perf_counter()
                status = process.wait()
            end = perf_counter()
        if status and (kill_at is None or status != -signal.SIGKILL):
            raise AssertionError(f"{mover.name} ended with {status}: {errors.read_text()[-2000:]}")
        return Load(end - start, done - begin, was_killed=status != 0)

    @contextlib.contextmanager
    def _killing(self, process: subprocess.Popen[str], size: int) -> Iterator[None]:
        """Kill the program when the database has the size, unless the block ends before."""
        wait = f"WHILE {_SIZE} < {size} LOOP PERFORM pg_sleep(0.001); END LOOP"
        ends_with_psql = "SET client_connection_check_interval = '100ms'"
        command = self.psql.command(ends_with_psql, f"DO $$ BEGIN {wait}; END $$")
        with subprocess.Popen(command) as waiter:

            def watch() -> None:
                if waiter.wait() == 0:
                    _kill(process)

            watching = threading.Thread(target=watch)
            watching.start()
            try:
                yield
            finally:
                waiter.kill()
                watching.join()

    def compare(self, mover: Mover) -> Difference:
        """Compare the rows in the table with those of the files."""
        given = f"SELECT {self._columns} FROM given.flights"
        found = f"SELECT {self._columns} FROM {mover.table}"
        lost, repeated = self.psql.run(
            "BEGIN",
            f"LOCK TABLE {mover.table}",
            f"SELECT count(*) FROM ({given} EXCEPT ALL {found}) lost",
            f"SELECT count(*) FROM ({found} EXCEPT ALL {given}) repeated",
            "COMMIT",
        ).split()
        return Difference(int(lost), int(repeated))


def _write(flights: Iterable[tuple[Any, ...]], parquet: Path, csv: Path, count: int) -> None:
    """Write the flights to files of equal size, in both formats."""
    import pyarrow as pa
    from examples.demo.flights import COLUMNS
    from pyarrow import csv as as_csv
    from pyarrow import parquet as as_parquet

    types = {
        "smallint": pa.int16(),
        "integer": pa.int32(),
        "text": pa.string(),
        "timestamptz": pa.timestamp("us", "UTC"),
    }
    schema = pa.schema([(column.name, types[column.sql]) for column in COLUMNS])
    parquet.mkdir()
    csv.mkdir()
    rest = iter(flights)
    for number in range(FILES):
        part = islice(rest, -(-count // FILES))
        columns = list(zip(*part, strict=True))[1:]  # without the number of the line
        rows = pa.table([list(column) for column in columns], schema=schema)
        as_parquet.write_table(rows, parquet / f"{number:02}.parquet")
        as_csv.write_csv(rows, csv / f"{number:02}.csv")


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "",  # modules are compiled once, as for a user
        "RUNTIME__DLTHUB_TELEMETRY": "false",
    }


def _wait_for(line: str, lines: Iterable[str]) -> None:
    """Return when the line is there, or the program has ended."""
    any(each.strip() == line for each in lines)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
