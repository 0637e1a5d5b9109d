"""`penstock demo`: a year of flights through a batcher into a database that is killed on the way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import TYPE_CHECKING, Any

from penstock._core.clock import LOOP_CLOCK
from penstock._core.errors import DrainTimeout, PenstockError
from penstock._core.stacking import stack
from penstock.batcher import Batcher, Limits, run
from penstock.retry import Retry
from penstock.sinks import PostgresSink, Timeout
from penstock.testing import EmbeddedPostgres, EmbeddedUnavailable, embedded_postgres

from ._flights import NAMES, Flight, NoFlights, read_flights
from ._progress import FlushTimes, View, keep_showing, make_view
from ._proof import Expected, Finding, create_table, prove

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

SCHEMA = "penstock_demo"
DOWN_SECONDS = 1.0
INTERRUPTED = 130
FAILED = 1
BAD_USE = 2


def demo(options: argparse.Namespace) -> int:
    """Run the demo; return the exit code: 0 only if every flight is proven to be in the table exactly once."""
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    try:
        flights = list(read_flights(options.rows))
        with contextlib.ExitStack() as cleanup:
            server = None if options.dsn else cleanup.enter_context(embedded_postgres())
            show = Demo(options, flights, server)
            cleanup.callback(show.view.close)
            code = run(show.main())
            return INTERRUPTED if code is None else code
    except (NoFlights, EmbeddedUnavailable) as error:
        print(f"penstock demo: {error}", file=sys.stderr)
        return BAD_USE
    except (PenstockError, OSError) as error:
        print(f"penstock demo: {error}", file=sys.stderr)
        return FAILED


class Demo:
    """One run."""

    def __init__(self, options: argparse.Namespace, flights: list[Flight], server: EmbeddedPostgres | None) -> None:
        self._options = options
        self._flights = flights
        self._server = server
        self._dsn: str = options.dsn if server is None else server.dsn
        self._expected = Expected()
        for flight in flights:
            self._expected.add(flight)
        self._half_way = asyncio.Event()
        self._read = 0
        self.view: View = make_view(plain=options.plain)

    async def main(self) -> int:
        """Write, prove, tell; the exit code."""
        chaos = self._server is not None and not self._options.no_chaos
        where = "an embedded PostgreSQL" if self._server is not None else f"the schema {SCHEMA!r} of the given database, which stays alive"
        self.view.say(f"{len(self._flights):,} flights into {where}")
        await create_table(self._dsn, SCHEMA)
        began = LOOP_CLOCK.now()
        batcher = self._make_batcher()
        try:
            await self._write(batcher, chaos=chaos)
        except DrainTimeout:
            pass  # the report says what was left
        except asyncio.CancelledError:
            self._say_what_was_left(batcher)
            raise
        seconds = LOOP_CLOCK.now() - began
        findings = await prove(self._dsn, SCHEMA, self._expected)
        return self._tell(batcher, findings, seconds)

    def _make_batcher(self) -> Batcher[Flight]:
        options = self._options
        sink = stack(
            PostgresSink(
                self._dsn,
                table="flights",
                schema=SCHEMA,
                columns=NAMES,
                on_conflict="error",
                pool_size=options.workers,
            ),
            Timeout(10.0),
            Retry(),
        )
        self._times = FlushTimes()
        limits = Limits(max_items=options.batch_size, workers=options.workers)
        return Batcher(sink, limits=limits, name="flights", observers=[self._times], shutdown_deadline=20.0)

    async def _write(self, batcher: Batcher[Flight], *, chaos: bool) -> None:
        async with batcher:
            showing = asyncio.create_task(keep_showing(self.view, batcher, self._times, len(self._flights)))
            source = iter(self._flights)
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(self._options.producers):
                        group.create_task(self._produce(batcher, source))
                    if chaos:
                        group.create_task(self._crash_the_server())
                await batcher.flush()
            finally:
                showing.cancel()

    async def _produce(self, batcher: Batcher[Flight], source: Iterator[Flight]) -> None:
        """One of several producers: takes the next flight that nobody has taken."""
        half = len(self._flights) // 2
        for flight in source:
            await batcher.add(flight)
            self._read += 1
            if self._read >= half:
                self._half_way.set()

    async def _crash_the_server(self) -> None:
        await self._half_way.wait()
        if self._server is None:
            return
        self.view.say("half-way: killing the database server with SIGKILL")
        await asyncio.to_thread(self._server.kill)
        await asyncio.sleep(DOWN_SECONDS)
        await asyncio.to_thread(self._server.start)
        self.view.say("the database server is back")

    def _say_what_was_left(self, batcher: Batcher[Any]) -> None:
        report = batcher.report
        if report is not None:
            self.view.say(f"interrupted; {report}")
            self.view.say(f"{len(report.unsent):,} flights were handed back unsent, {len(report.unknown):,} are unknown")

    def _tell(self, batcher: Batcher[Any], findings: list[Finding], seconds: float) -> int:
        self.view.show(batcher, self._times, len(self._flights), seconds)
        self.view.close()
        report = batcher.report
        tally = batcher.tally()
        wrong = [finding for finding in findings if not finding.holds]
        if report is None or not report.complete or tally.delivered + tally.duplicate != len(self._flights):
            wrong.append(Finding("delivered or duplicate", len(self._flights), tally.delivered + tally.duplicate))
        tally.verify()
        self.view.say(f"tally: {tally}")
        for finding in findings:
            self.view.say(f"{'ok ' if finding.holds else 'BAD'} {finding.what}: {finding.found}, expected {finding.expected}")
        verdict = "DIFFERENT: the table is not what was sent" if wrong else "every flight is there exactly once"
        self.view.say(f"{verdict} ({len(self._flights) / seconds:,.0f} flights/s, {seconds:.1f} s)")
        return FAILED if wrong else 0
