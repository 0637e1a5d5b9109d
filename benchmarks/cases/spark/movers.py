"""The flights from files into an empty table, by programs that move data: their time, and what is
lost or repeated when they are killed and started again.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ...environments import environment
from ...harness import US_PER_ITEM, Case, CaseUnavailableError, Unit, name_of, placed
from ...spark.loads import Difference, Load, Loading, Mover
from ...workers import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...environments import Environment
    from ...harness import Contender, Results

FLIGHTS = 336_776
OURS = "Sluicegate, `df.write`"
ATOMIC = "Sluicegate, atomic pipeline"
JDBC = "JDBC, reWriteBatchedInserts, 10,000"
DLT = "dlt"
DLT_FAST = "dlt, Arrow and ADBC"
PSQL = "psql, one transaction"
BY_SPARK = "benchmarks.spark.load_by_spark"
BY_DLT = {DLT: "default", DLT_FAST: "arrow"}
PACKAGES = ["dlt[postgres,parquet]", "adbc-driver-postgresql"]
COMMAND, WORK = "the command", "without its start"
LOST, REPEATED = "lost", "repeated"
MOMENTS = tuple(random.Random(5).uniform(n / 5, (n + 1) / 5) for n in range(5))
"""When a program is killed, in parts of what it adds to the database: once in each fifth, at a seeded
moment."""


@contextlib.contextmanager
def _movers(count: int) -> Iterator[tuple[Loading, Sequence[Mover]]]:
    """Start a server, write the files, and make dlt's environment."""
    try:
        from examples.demo.flights import NoFlights

        from sluicegate.errors import MissingJars
        from sluicegate.spark import connector_jars
        from sluicegate.testing import EmbeddedUnavailable, embedded_postgres
    except ImportError as missing:
        raise CaseUnavailableError(str(missing)) from missing
    with contextlib.ExitStack() as opened:
        try:
            connector_jars("postgresql")
            server = opened.enter_context(embedded_postgres())
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            loading = Loading(server.dsn, folder, count)
        except (EmbeddedUnavailable, MissingJars, NoFlights) as missing:
            raise CaseUnavailableError(str(missing)) from missing
        made = opened.enter_context(environment(sys.executable, ["pyarrow"], PACKAGES))
        by_psql = Mover(PSQL, loading.by_psql(), library=loading.psql.version())
        yield loading, [*_on_spark(loading), *_by_dlt(loading, made), by_psql]


def _on_spark(loading: Loading) -> list[Mover]:
    return [
        Mover(
            name,
            [sys.executable, "-m", BY_SPARK, way, str(loading.parquet), loading.dsn],
            is_ours=name != JDBC,
        )
        for name, way in {OURS: "sluicegate", ATOMIC: "pipeline", JDBC: "jdbc"}.items()
    ]


def _by_dlt(loading: Loading, made: Environment) -> list[Mover]:
    program = ROOT / "benchmarks" / "spark" / "load_by_dlt.py"
    if not all(map(made.has, PACKAGES)):
        return []
    return [
        Mover(
            name,
            [
                made.executable,
                *map(str, (program, way, loading.parquet, loading.dsn, loading.state)),
            ],
            table="by_dlt.flights",
            library=made.version(PACKAGES[0]),
        )
        for name, way in BY_DLT.items()
    ]


class Timed:
    """The loads of a mover, of which each has two times."""

    def __init__(self, loading: Loading, mover: Mover) -> None:
        self._loading, self._mover = loading, mover
        self._last = Load(0.0, 0.0, was_killed=False)

    def command(self) -> float:
        """Load the files; return the time of the command."""
        self._loading.clear()
        self._last = self._loading.load(self._mover)
        if (found := self._loading.compare(self._mover)) != Difference(0, 0):
            raise AssertionError(f"{self._mover.name}: {found}")
        return self._last.command

    def work(self) -> float:
        """Return the other time of the same load."""
        return self._last.work


class Killed:
    """The loads of a mover that are killed, except the first."""

    def __init__(self, loading: Loading, mover: Mover) -> None:
        self._loading, self._mover = loading, mover
        self._growth = 0
        self._kills = 0
        self._last = Difference(0, 0)

    def lost(self) -> int:
        """Load the files, kill the program, start it again; return the number of missing rows."""
        if not self._growth:
            self._loading.clear()
            before = self._loading.size()
            self._loading.load(self._mover)
            self._growth = self._loading.size() - before
        else:
            moment = MOMENTS[self._kills % len(MOMENTS)]
            while not self._is_killed(moment):
                moment *= 0.8
            self._loading.load(self._mover)
            self._kills += 1
        self._last = self._loading.compare(self._mover)
        return self._last.lost

    def _is_killed(self, moment: float) -> bool:
        """Return whether the program was killed before it was done."""
        self._loading.clear()
        size = self._loading.size() + round(moment * self._growth)
        return self._loading.load(self._mover, kill_at=size).was_killed

    def repeated(self) -> int:
        """Return the number of rows that are there too often after the same kill."""
        return self._last.repeated


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    with _movers(count) as (loading, movers):
        yield [
            contender
            for mover in movers
            for timed in [Timed(loading, mover)]
            for contender in _placed(mover, {COMMAND: timed.command, WORK: timed.work})
        ]


@contextlib.contextmanager
def prepare_kills(count: int) -> Iterator[Sequence[Contender]]:
    with _movers(count) as (loading, movers):
        yield [
            contender
            for mover in movers
            for killed in [Killed(loading, mover)]
            for contender in _placed(mover, {LOST: killed.lost, REPEATED: killed.repeated})
        ]


def _placed(mover: Mover, turns: dict[str, Callable[[], float]]) -> list[Contender]:
    return [
        placed(line, mover.name, turn, ours=mover.is_ours, library=mover.library)
        for line, turn in turns.items()
    ]


def _rates(results: Results) -> list[str]:
    """Format rows per second and the speed compared with `OURS`, which the table does not have."""
    return [
        f"{mover}: {_rate(results, COMMAND, mover)}; without its start {_rate(results, WORK, mover)}."
        for mover in map(str, results.points)
    ]


def _rate(results: Results, line: str, mover: str) -> str:
    spread = results.spread(name_of(line, mover))
    median, least, most = (1e6 / each for each in (spread.median, spread.most, spread.least))
    rate = f"{median:,.0f} rows/s ({least:,.0f} to {most:,.0f})"
    ratio = results.ratio(name_of(line, mover), name_of(line, OURS))
    against = f", {ratio.median:.2f} x ({ratio.least:.2f} to {ratio.most:.2f}) {OURS}"
    return rate if mover == OURS else rate + against


def _kills(results: Results) -> list[str]:
    """List the kills that had a consequence."""
    return [
        f"{mover}: {_rows(results, LOST, mover)}; {_rows(results, REPEATED, mover)}."
        for mover in map(str, results.points)
    ]


def _rows(results: Results, line: str, mover: str) -> str:
    rows = [int(each) for each in results.figures[name_of(line, mover)]]
    told = f" ({', '.join(f'{each:,}' for each in rows)})" if any(rows) else ""
    return f"{line} rows in {sum(map(bool, rows))} of {len(rows)} kills{told}"


CASE = Case(
    name="movers",
    title="Twelve Parquet files into PostgreSQL, by a command",
    prepare=prepare,
    items=FLIGHTS,
    quick_items=120,
    unit=US_PER_ITEM,
    peers=(),
    along="program",
    is_drawn=False,
    notes=_rates,
)
KILLED = Case(
    name="movers-killed",
    title="The same, killed and started again",
    prepare=prepare_kills,
    items=FLIGHTS,
    quick_items=120,
    unit=Unit("rows", 1.0, per_item=False, of_time=False),
    peers=(),
    along="program",
    is_drawn=False,
    notes=_kills,
)
