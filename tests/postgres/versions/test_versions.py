"""The main guarantees, on each supported version of PostgreSQL.

The oldest is tested in every run, the others in the soak; all other tests use the newest. With
`SLUICEGATE_REQUIRE=postgres-versions` an unavailable version is an error.

White box: an epoch is staged and published without Spark.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.cli.dlq_help import Cli, keep, record
from tests.postgres.queues.jobs_help import claim, create, handled, insert, settle
from tests.postgres.sink.postgres_help import batch_of, database, outcomes, written
from tests.postgres.streams.log_help import Log, fresh_name, role
from tests.postgres.versions.servers import VERSIONS, programs

from sluicegate import Outcome, send, transaction
from sluicegate._core.staging import Epoch, stages_of
from sluicegate.cli import main
from sluicegate.postgres import (
    PostgresSink,
    QueueAdmin,
    StreamMonitor,
    check_streams,
    install_streams,
)
from sluicegate.sinks import Counts, DeadLetterRecord, Unit
from sluicegate.testing import embedded_postgres
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

CHECKED = "id int PRIMARY KEY, word text CHECK (word <> 'bad'), version int"
IDS = ("7b0cc2a3-5d4c-4d6e-8a53-0f5a4d1d1b9c", "0c5a0d3e-9c1f-4b52-9a4e-6f8f8d2b7a10")
MODES: dict[str, dict[str, Any]] = {
    "error": {},
    "ignore": {"on_conflict": "ignore"},
    "update": {"on_conflict": "update"},
    "version": {"on_conflict": "update", "version_column": "version"},
}


@contextlib.contextmanager
def _server(version: str) -> Generator[EmbeddedPostgres]:
    with embedded_postgres({"fsync": "off"}, binaries=programs(version)) as server:
        yield server


OLDEST, *LATER = VERSIONS


@pytest.fixture(
    scope="module", params=[OLDEST, *(pytest.param(each, marks=pytest.mark.soak) for each in LATER)]
)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedPostgres]:
    with there_or_skip("postgres-versions", _server(request.param)) as found:
        assert found.version.partition(".")[0] == request.param.partition(".")[0]
        yield found


@pytest.mark.long
async def test_infinite_times_do_not_hide_figures(
    server: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """Before PostgreSQL 17, a difference of times fails if one of them is infinite."""
    log = Log(server.dsn, fresh_name())
    await install_streams(log.dsn, schema=log.schema)
    jobs = f"INSERT INTO {log.sql}.job (queue, key, payload, due, at) VALUES ($1, $2, '1', $3, $4)"
    never, always = datetime.max, datetime.min  # asyncpg's forms of the infinities
    async with log.connected() as con, QueueAdmin(log.dsn, schema=log.schema) as admin:
        for name in ("held", "old", "other"):
            await admin.create(name)
        await con.execute(jobs, "held", "a", never, never)
        await con.execute(jobs, "old", None, None, always)
        await con.execute(jobs, "other", "k", None, datetime.now(UTC))
        figures = await admin.lag()
        assert {name: each.jobs for name, each in figures.items()} == dict.fromkeys(figures, 1)
        assert (figures["held"].next_due, figures["old"].oldest_seconds) == (math.inf, math.inf)
        assert (await admin.explain("held")).notes
        await con.execute(f"UPDATE {log.sql}.message SET at = 'infinity'")
        async with StreamMonitor(log.dsn, schema=log.schema) as monitor:
            await monitor.poll()


@pytest.mark.parametrize("mode", MODES)
async def test_bad_rows_fail_alone_and_conflicts_follow_their_rule(
    server: EmbeddedPostgres, real_clock: LoopClock, mode: str
) -> None:
    columns = ("id", "word", "version")
    async with database(server.dsn, CHECKED) as db:
        async with db.sink(columns, staging_threshold=200, **MODES[mode]) as sink:
            for start, size in ((0, 1), (100, 20), (1000, 300)):
                bad = {size // 2, size - 1} if size > 1 else set[int]()
                rows = [(start + n, "bad" if n in bad else "x", 1) for n in range(size)]
                assert set(await written(sink, rows)) == bad
                again = await written(sink, [(key, "again", 0) for key, _, _ in rows])
                assert set(again) == (set(range(size)) - bad if mode == "error" else set())
        found = {key: word for key, word, _ in await db.rows()}
        assert len(found) == 321
        replaced = 321 if mode == "update" else 4  # the bad rows have left their keys free
        assert sum(word == "again" for word in found.values()) == replaced


async def test_an_unknown_outcome_is_resolved(
    server: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(server.dsn, f"{CHECKED}, number serial") as db:
        async with db.sink() as sink:
            batch = batch_of([(n, "x") for n in range(120)])
            assert await send(sink, batch) == {}
            maybe = batch_of([(n, "x") for n in range(200)], range(120))
            assert await send(sink, maybe) == {}
        assert outcomes(maybe) == [Outcome.DUPLICATE] * 120 + [Outcome.DELIVERED] * 80
        assert len(await db.rows()) == 200


async def test_units_and_epochs_are_committed_once(
    server: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(server.dsn, CHECKED) as db, db.sink() as sink:
        for _ in range(2):
            async with transaction(sink, Unit(application=db.table, version=1)) as within:
                await send(within, batch_of([(n, "x") for n in range(60)]))
        for overwrite in (False, True):
            unit = Unit(application=db.table, version=2 + overwrite)
            epoch = Epoch(unit=unit, overwrite=overwrite)
            begun = await stages_of(sink).begin(epoch)
            async with stages_of(sink).stage(epoch) as opened:
                assert await send(opened.sink, batch_of([(1000, "x"), (1001, "y")])) == {}
                stage = await opened.inventory()
            counts = Counts(rows=2, delivered=2)
            assert await stages_of(sink).publish(epoch, [stage], counts, begun.mark) is None
            assert len(await db.rows()) == (2 if overwrite else 62)


def test_dead_letters_are_kept_listed_and_replayed(
    server: EmbeddedPostgres,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "accepts.py").write_text("async def sink(batch):\n    pass\n")
    assert main(["dlq", "init", server.dsn]) == 0
    sink = PostgresSink(
        server.dsn,
        table="dead_letters",
        columns=DeadLetterRecord.COLUMNS,
        row=DeadLetterRecord.as_row,
        on_conflict="ignore",
    )
    keep(sink, [record(number) for number in range(20)])
    cli = Cli(capsys)
    assert cli.keys(server.dsn) == list(range(20))
    cli("replay", server.dsn, "--to", "accepts:sink")
    assert cli.keys(server.dsn) == []
    cli("purge", server.dsn)
    assert asyncio.run(_count(server.dsn)) == 0


async def _count(dsn: str) -> int:
    con = await asyncpg.connect(dsn)
    try:
        return int(await con.fetchval("SELECT count(*) FROM dead_letters"))
    finally:
        await con.close()


async def test_a_log_of_streams_is_installed_with_its_roles(
    server: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    log = Log(server.dsn, fresh_name())
    async with role(log) as app, log.connected() as con:
        await install_streams(log.dsn, schema=log.schema, append=app.name, subscribe=app.name)
        assert await check_streams(log.dsn, schema=log.schema) == []
        writer = await asyncpg.connect(app.dsn)
        try:
            assert await log.append(writer, "order-1", 1, 2) == [1, 2]
            assert await writer.fetchval(f"SELECT {log.sql}.horizon()") == 2
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await writer.execute(f"DELETE FROM {log.sql}.message")
        finally:
            await writer.close()
        await con.execute(f"DROP INDEX {log.sql}.message_slot; DROP VIEW {log.sql}.appender")
        for problem in await check_streams(log.dsn, schema=log.schema):
            await con.execute(";".join(problem.repair))
        await install_streams(log.dsn, schema=log.schema, subscribe=app.name)
        assert await check_streams(log.dsn, schema=log.schema) == []


async def test_jobs_are_claimed_and_settled_by_a_role_that_works(
    server: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    log = Log(server.dsn, fresh_name())
    async with role(log) as app, log.connected() as con:
        await install_streams(log.dsn, schema=log.schema, work=app.name)
        await create(con, log, "plain")
        await create(con, log, "line", ordering_required=True, poison="block")
        await create(con, log, "sticky", sticky=True, keep_done=timedelta(days=1))
        for queue in ("plain", "line", "sticky"):
            await insert(con, log, queue, ("k", 1), ("m", 2), ("k", 3))
        await con.execute(
            f"SELECT * FROM {log.sql}.enqueue($1, $2, $3, p_ids => $4, p_locks => $2, "
            "p_client => 'c', p_numbers => $5)",
            *("plain", ["k", "k"], ["4", "5"], [IDS[0], IDS[1]], [1, 2]),
        )
        worker = await asyncpg.connect(app.dsn)
        try:
            await worker.execute(f"SELECT {log.sql}.seen_consumer('sticky', 'workers', 'one', 30)")
            balance = f"SELECT {log.sql}.balance_ranges('sticky', 'workers', 0)"
            assert await worker.fetchval(balance) == 256
            rows = await claim(worker, log, "plain")
            leases = [*{row["r_lease"]: row for row in rows}.values()]
            extend = (
                f"SELECT count(*) FROM {log.sql}.extend_leases('plain', $1, $2, $3, 60) "
                "WHERE r_fate = 'kept'"
            )
            columns = ([row[name] for row in leases] for name in ("r_lease", "r_lane", "r_place"))
            assert await worker.fetchval(extend, *columns) == 2
            assert "lost" not in await settle(worker, log, "plain", leases, "free", rows)
            assert sorted(await handled(worker, log, "sticky")) == [1, 2, 3]
            assert await handled(worker, log, "line") == [1, 2, 3]
        finally:
            await worker.close()
        assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.job") == 0
        await con.execute(f"DROP TRIGGER ring ON {log.sql}.job")
        await insert(con, log, "plain", ("k", 6))
        found = {
            problem.name: problem for problem in await check_streams(log.dsn, schema=log.schema)
        }
        assert set(found) == {"trigger-missing", "jobs-without-lane"}
        await con.execute(";".join(found["trigger-missing"].repair))
        assert await check_streams(log.dsn, schema=log.schema) == []
        assert await handled(con, log, "plain") == [6]
