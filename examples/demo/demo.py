"""A year of flights through a batcher into a database that is killed half-way.

1. Every process is started and stopped inside `run`, so that a signal at any time leads to a clean
   shutdown.
2. A conflict is an error: the table's key would refuse a second copy. Only an attempt with an
   unknown outcome is looked up and sent again.
3. The proof queries the database over a separate connection, and the tally has to agree with it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections import Counter
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, cast

import asyncpg

from sluicegate import (
    Batcher,
    CircuitBreaker,
    ConfigError,
    DeadLetter,
    DrainTimeout,
    Limits,
    Retry,
    SluicegateError,
    Timeout,
    run,
    stack,
)
from sluicegate.errors import MissingExtra
from sluicegate.postgres import PostgresSink
from sluicegate.testing import EmbeddedUnavailable

from .database import Database
from .flights import NAMES, Flight, FlightFile, NoFlights, find_file, spoiled
from .progress import FlushTimes, Progress, View, make_view, show_periodically
from .proof import Expected, Finding, create_table, prove
from .scenes import Scenes, check_options

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from sluicegate.sinks import DeadLetterRecord

SCHEMA = "sluicegate_demo"
SHUTDOWN_SECONDS = 20.0
LETTERS = ("key", "line", "why", "error", "attempts")
TRY_SECONDS = 10.0
BREAKER_SECONDS = 1.0
READ_AT_ONCE = 2000
SAME_ERRORS = 3
INTERRUPTED = 130
FAILED = 1
BAD_USE = 2

_BAD_USE = (ConfigError, MissingExtra, NoFlights, EmbeddedUnavailable)
_FAILED = (SluicegateError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError)


def demo(options: argparse.Namespace) -> int:
    """Run the demo; return 0 only if every flight is proven to be in the table exactly once."""
    try:
        check_options(options)
        with closing(make_view(plain=options.plain)) as view, _errors_shown():
            code = _interruptible(Demo(options, view))
        return INTERRUPTED if code is None else code
    except (*_BAD_USE, *_FAILED, ExceptionGroup) as raised:
        error = _first(raised)
        if not isinstance(error, (*_BAD_USE, *_FAILED)):
            raise
        notes: list[str] = getattr(raised, "__notes__", [])
        print(
            f"demo: {str(error) or type(error).__name__}",
            *notes,
            sep="\n",
            file=sys.stderr,
        )
        return BAD_USE if isinstance(error, _BAD_USE) else FAILED


def _interruptible(demo: Demo) -> int | None:
    """Run it; return `None` if a signal ended it, even if all pending items could be written."""
    try:
        return run(demo.main())
    except DrainTimeout:
        if not demo.was_interrupted:
            raise
        return None


def _first(error: Exception | ExceptionGroup[Exception]) -> Exception:
    """Return the first error of nested exception groups."""
    while isinstance(error, ExceptionGroup):
        group = cast("ExceptionGroup[Exception]", error)
        error = group.exceptions[0]
    return error


@contextmanager
def _errors_shown() -> Iterator[None]:
    """Print the errors that the library logs, at most a few of each kind."""
    seen: Counter[str] = Counter()

    def is_news(record: logging.LogRecord) -> bool:
        seen[record.msg] += 1
        return seen[record.msg] <= SAME_ERRORS

    handler = logging.StreamHandler()
    handler.setLevel(logging.ERROR)
    handler.addFilter(is_news)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


class Demo:
    """One run."""

    def __init__(self, options: argparse.Namespace, view: View) -> None:
        self._options = options
        self._view = view
        self._flights: list[Flight] = []
        self._expected = Expected(0, "")
        self._batcher: Batcher[Flight] | None = None
        self._added = 0
        self._half_way = asyncio.Event()
        self.was_interrupted = False

    async def main(self) -> int:
        """Read, write, prove and report; return the exit code."""
        _treat_hangup_as_sigterm()
        path = find_file()
        try:
            reading = asyncio.create_task(self._read(FlightFile(path, self._options.rows)))
            try:
                async with Database(self._options.dsn) as database:
                    await reading
                    return await self._run(database)
            finally:
                reading.cancel()
        except asyncio.CancelledError:
            self.was_interrupted = True
            self._report_remaining()
            raise

    async def _read(self, file: FlightFile) -> None:
        """Read the file while the server starts, yielding to signal handlers."""
        self._view.say(
            "reading the flights, "
            f"{'starting an embedded PostgreSQL' if self._options.dsn is None else 'using the given database'}"
        )
        with file:
            for flight in file:
                self._flights.append(flight)
                if file.rows % READ_AT_ONCE == 0:
                    await asyncio.sleep(0)
        self._spoil()
        self._expected = Expected(file.rows, file.digest, spoiled=len(self._flights) - file.rows)

    def _spoil(self) -> None:
        """Insert spoiled copies of some flights."""
        every = self._options.poison
        if every:
            for number, place in enumerate(range(len(self._flights) - 1, 0, -every)):
                self._flights.insert(place, spoiled(self._flights[place], number))

    async def _run(self, database: Database) -> int:
        times = FlushTimes()
        batcher = self._make_batcher(database, times)
        await create_table(database.dsn, SCHEMA)
        self._announce(database)
        progress = Progress(batcher, times, database, self._expected.rows)
        showing = asyncio.create_task(show_periodically(self._view, progress))
        try:
            self._batcher = batcher
            await self._write(batcher, database)
        finally:
            showing.cancel()
            self._view.show(progress)
        seconds = progress.seconds
        self._view.say("querying the database for the proof")
        findings = await prove(database.dsn, SCHEMA, self._expected)
        self._view.close()
        code = self._report_result(batcher, findings, seconds)
        scenes = Scenes(self._options, self._view, database.dsn, SCHEMA, self._flights)
        return code or (0 if await scenes.play() else FAILED)

    def _make_batcher(self, database: Database, times: FlushTimes) -> Batcher[Flight]:
        workers = self._options.workers
        table = PostgresSink(
            database.dsn,
            table="flights",
            schema=SCHEMA,
            columns=NAMES,
            on_conflict="error",
            pool_size=workers,
        )
        letters = PostgresSink(
            database.dsn,
            table="dead_letters",
            schema=SCHEMA,
            columns=LETTERS,
            on_conflict="ignore",
            pool_size=workers,
        )
        sink = stack(
            table,
            Timeout(TRY_SECONDS),
            CircuitBreaker(open_for=BREAKER_SECONDS),
            Retry(),
            # after the kill, a spoiled flight may have an unknown attempt before its refusal
            DeadLetter(
                stack(letters, Timeout(TRY_SECONDS), Retry()),
                record=_letter,
                take=("permanent", "exhausted", "transient", "given_up", "unknown"),
            ),
        )
        limits = Limits(max_items=self._options.batch_size, workers=workers)
        return Batcher(
            sink,
            limits=limits,
            name="flights",
            observers=[times],
            shutdown_deadline=SHUTDOWN_SECONDS,
        )

    def _announce(self, database: Database) -> None:
        expected = self._expected
        self._view.say(
            f"{expected.rows:,} flights and {expected.spoiled:,} spoiled ones for the table "
            f"{SCHEMA}.flights, {self._options.producers} producers"
        )
        if not database.may_be_killed:
            self._view.say("the database was given with --dsn, so it is never killed")

    async def _write(self, batcher: Batcher[Flight], database: Database) -> None:
        try:
            async with batcher:
                try:
                    await self._fill(batcher, database)
                except asyncio.CancelledError:
                    self._view.say(
                        "interrupted: writing the pending flights, for at most "
                        f"{SHUTDOWN_SECONDS:.0f} s; interrupt again to end it now"
                    )
                    raise
        except DrainTimeout:
            pass  # the report names the remaining items, and the proof the missing ones

    async def _fill(self, batcher: Batcher[Flight], database: Database) -> None:
        producers = self._options.producers
        async with asyncio.TaskGroup() as group:
            for place in range(producers):
                group.create_task(self._produce(batcher, self._flights[place::producers]))
            if database.may_be_killed and not self._options.no_chaos:
                group.create_task(self._crash(database))
        await batcher.flush()

    async def _produce(self, batcher: Batcher[Flight], share: list[Flight]) -> None:
        half = len(self._flights) // 2
        for flight in share:
            await batcher.add(flight)
            self._added += 1
            if self._added >= half:
                self._half_way.set()

    async def _crash(self, database: Database) -> None:
        await self._half_way.wait()
        await database.crash(self._view.say)

    def _report_remaining(self) -> None:
        report = None if self._batcher is None else self._batcher.report
        if report is None:
            self._view.say("interrupted before the first flight was written")
            return
        self._view.say(f"interrupted; {report}")
        never = len(self._flights) - report.tally.accepted
        self._view.say(
            f"{len(report.unsent):,} flights were returned unsent, {len(report.unknown):,} "
            f"are unknown, {never:,} were never added"
        )

    def _report_result(
        self, batcher: Batcher[Flight], findings: list[Finding], seconds: float
    ) -> int:
        checks = [*self._checks_of_the_tally(batcher), *findings]
        self._view.say(str(batcher.report))
        for check in checks:
            self._view.say(str(check))
        rows = self._expected.rows
        figures = f"{rows:,} rows in {seconds:.1f} s, {rows / seconds:,.0f} rows/s"
        if all(check.holds for check in checks):
            self._view.say(
                "every flight is stored exactly once, every spoiled one is a dead letter: "
                f"{figures}"
            )
            return 0
        self._view.say(
            "DIFFERENT, the table does not match the flights: "
            f"{', '.join(check.what for check in checks if not check.holds)} ({figures})"
        )
        return FAILED

    def _checks_of_the_tally(self, batcher: Batcher[Flight]) -> list[Finding]:
        tally = batcher.tally()
        return [
            Finding("sum of outcomes, equal to the accepted items", tally.accepted, tally.settled),
            Finding(
                "delivered, or found stored after an unknown attempt",
                self._expected.rows,
                tally.delivered + tally.duplicate,
            ),
            Finding("dead-lettered", self._expected.spoiled, tally.dead_lettered),
            Finding(
                "pending, rejected, unsent or unknown",
                0,
                tally.inside + tally.rejected + tally.unsent + tally.unknown,
            ),
        ]


def _letter(record: DeadLetterRecord[Flight]) -> tuple[object, ...]:
    return record.key, record.item[0], record.error_class, record.message, record.attempts


def _treat_hangup_as_sigterm() -> None:
    """Treat a closed terminal as SIGTERM, unless SIGHUP is already handled or ignored (nohup)."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        try:
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGHUP, signal.raise_signal, signal.SIGTERM
            )
        except (ValueError, RuntimeError):
            pass  # not in the main thread: the caller handles signals
