"""The reasons for which a key, a slot or a whole queue waits.

White box: the printing of figures, and the statement of snapshots.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.queues.jobs_help import claim, insert
from tests.postgres.queues.operated_help import end, fail, operated
from tests.postgres.queues.source.outages_help import Watched

from sluicegate import Consumer
from sluicegate.postgres.commands.output import print_queue_lag
from sluicegate.postgres.queues import queries as queue_sql

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate import Message
    from sluicegate.postgres import QueueAdmin

pytestmark = pytest.mark.usefixtures("real_clock")
LAST = 65_535


async def seen(
    con: Any, log: Log, consumer: str, group: str = "workers", seconds: float = 60
) -> None:
    """Record that a consumer is alive."""
    await con.fetch(
        f"SELECT {log.sql}.seen_consumer('mails', $1, $2, $3)", group, consumer, seconds
    )


async def why(admin: QueueAdmin, key: str) -> str:
    """The reason for which this key waits."""
    report = await admin.explain("mails", key=key)
    if not report.lanes:
        return str(report.why_key_has_no_lane)
    (lane,) = report.lanes
    return report.reason(lane)


async def notes(admin: QueueAdmin) -> str:
    return "\n".join((await admin.explain("mails")).notes)


async def test_a_key_waits_for_its_lease_its_backoff_and_its_operator(log: Log) -> None:
    """From its bell to its stop, one cause after another."""
    async with operated(log) as (con, admin):
        await admin.create("mails", max_attempts=2)
        await seen(con, log, "one")
        assert await why(admin, "a") == "it has no job in committed transactions"
        await insert(con, log, "mails", ("a", 1))
        assert await why(admin, "a") == "it waits in a bell that the next claims merge into a lane"
        (row,) = await claim(con, log, "mails")
        assert re.fullmatch(
            r"leased by one of the group workers, [123]?\d s left", await why(admin, "a")
        )
        await con.execute(f"UPDATE {log.sql}.lane SET lease_until = now() - interval '1 hour'")
        assert re.fullmatch(r"the lease of one expired 36\d\d s ago: .*", await why(admin, "a"))
        (row,) = await claim(con, log, "mails")
        await end(con, log, "mails", row, "nak", 60.0)
        assert re.fullmatch(r"backs off for [3-6]\d\.\d s after 2 attempts", await why(admin, "a"))
        await con.execute(f"UPDATE {log.sql}.lane SET due = now(), attempts = 1")
        assert await why(admin, "a") == "ready: the next claim may lease it"
        await fail(con, log, "mails")
        told = await why(admin, "a")
        assert re.fullmatch(
            r"parked for \d+ s after 2 attempts: boom; `sluicegate queue unpark`.*", told
        )


async def test_a_key_that_is_parked_under_a_lease_names_its_consumer(log: Log) -> None:
    """The lease continues, and no other job of the key is given out."""
    async with operated(log) as (con, admin):
        await admin.create("mails")
        await insert(con, log, "mails", ("a", 1))
        await claim(con, log, "mails")
        assert await (await admin.keys("mails")).park("a", "by hand")
        assert re.search(r"by hand; one still has a lease, [123]?\d s left", await why(admin, "a"))


async def test_a_delayed_job_is_in_no_lane(log: Log) -> None:
    """It does not stall the queue; the report says until when it is delayed."""
    async with operated(log) as (con, admin):
        await admin.create("mails")
        await con.execute(
            f"INSERT INTO {log.sql}.job (queue, key, payload, due) "
            "VALUES ('mails', 'a', '1', now() + interval '90 s')"
        )
        due = r"due in [6-9]\d s"
        assert re.fullmatch(f"its next job is delayed, and {due}", await why(admin, "a"))
        assert re.search(f"1 jobs are delayed; the next is {due}", await notes(admin))


async def test_a_queue_holds_ready_keys(log: Log) -> None:
    """A pause, the limit of leases, the rate of a key, and missing consumers."""
    async with operated(log) as (con, admin):
        await admin.create("mails", max_in_flight=1, key_rate=0.01, max_depth=4)
        await insert(con, log, "mails", ("a", 1), ("a", 2), ("b", 3), ("b", 4))
        told = await notes(admin)
        assert "no consumer is registered: none was started, or all have left" in told
        assert "2 new keys wait in bells that the next claims merge into lanes" in told
        assert "max_depth=4 is reached: enqueues fail" in told
        (row,) = await claim(con, log, "mails")
        (other,) = {"a", "b"} - {row["r_lane"]}
        assert await why(admin, other) == "max_in_flight=1 leases are in use"
        assert "max_in_flight=1 leases are in use" in await notes(admin)
        await end(con, log, "mails", row, "free")
        assert re.search(r"key_rate=0.01 a second: .* in \d+.\d s", await why(admin, row["r_lane"]))
        assert await why(admin, other) == "no consumer is live"
        await seen(con, log, "one", seconds=-5)
        last = r"the last one, one of the group workers, was seen \d+ s ago"
        assert re.search(last, await notes(admin))
        await admin.pause("mails")
        assert await why(admin, other) == "the queue is paused"
        assert "the queue is paused: `sluicegate queue resume`" in await notes(admin)


async def test_a_slot_waits_for_an_owner_and_for_an_earlier_one(log: Log) -> None:
    """Q6, Q-T1: no owner, an owner that was not seen, and a range that drains."""
    async with operated(log) as (con, admin):
        await admin.create("mails", sticky=True)
        await insert(con, log, "mails", ("a", 1), ("a", 2))
        assert "no consumer owns a slot: no ranges are assigned" in await notes(admin)
        assert await claim(con, log, "mails", "A") == []
        slot = await con.fetchval(f"SELECT {log.sql}.ring_slot('a')")
        assert await why(admin, "a") == f"slot {slot}: no consumer owns it"
        routing = await admin.routing("mails", "workers")
        await routing.move(slot, slot, "A")
        gone = "group workers: its consumer A was never seen"
        assert await why(admin, "a") == f"slot {slot}: {gone}"
        told = await notes(admin)
        assert f"no consumer owns the slots 0-{slot - 1}, {slot + 1}-{LAST}" in told
        assert gone in told
        assert (await admin.lag("mails"))["mails"].unowned_slots == LAST + 1
        await seen(con, log, "A")
        await seen(con, log, "B")
        assert await why(admin, "a") == "ready: the next claim may lease it"
        assert (await admin.lag("mails"))["mails"].unowned_slots == LAST
        (row,) = (await claim(con, log, "mails", "A"))[:1]
        await insert(con, log, "mails", ("b", 1))
        await routing.assign([(0, LAST, "B")])
        assert "leased by A of the group workers" in await why(admin, "a")
        assert await claim(con, log, "mails", "B") == []
        drains = r"the range 0-65535 drains for A, whose lease has [123]?\d s left"
        assert re.search(drains, await why(admin, "b"))
        assert re.search(drains, await notes(admin))
        await end(con, log, "mails", row, "nak")
        assert await why(admin, "b") == "ready: the next claim may lease it"
        (span,) = (await admin.explain("mails")).ranges
        assert (span.consumer, span.is_live, span.waits_for) == ("B", True, None)


async def test_another_group_may_serve_a_slot(log: Log) -> None:
    """Q-T4: a group whose consumer is gone does not hold the keys of the other group."""
    async with operated(log) as (con, admin):
        await admin.create("mails", sticky=True)
        await insert(con, log, "mails", ("a", 1))
        for group in ("one", "two"):
            await (await admin.routing("mails", group)).assign([(0, LAST, "A")])
        await claim(con, log, "mails", "nobody")
        assert "group one: its consumer A was never seen; group two" in await why(admin, "a")
        await seen(con, log, "A", group="two")
        assert await why(admin, "a") == "ready: the next claim may lease it"
        assert (await admin.lag("mails"))["mails"].unowned_slots == 0


async def test_strict_order_makes_ranges_inactive(log: Log) -> None:
    """Q1: the report says so."""
    async with operated(log) as (con, admin):
        await admin.create("mails", sticky=True, ordering_required=True)
        await insert(con, log, "mails", ("a", 1))
        told = await notes(admin)
        assert "ordering_required makes sticky routing and its ranges inactive" in told
        assert "owns" not in told
        assert await why(admin, "a") == "all jobs are in one lane, that of the empty key"
        assert (await admin.lag("mails"))["mails"].unowned_slots is None


@pytest.mark.parametrize(
    ("kind", "pids"), [("client backend", [7]), (None, [7]), ("autovacuum worker", [])]
)
async def test_the_snapshot_of_an_autovacuum_worker_keeps_no_rows(
    log: Log, kind: str | None, pids: list[int]
) -> None:
    """A role without permission to see other sessions sees no kind."""
    activity = (
        "SELECT 7 AS pid, '' AS application_name, user AS usename, 'active' AS state, now() AS "
        "xact_start, '3'::xid AS backend_xmin, current_database() AS datname, $1::text AS backend_type"
    )
    literal = "NULL" if kind is None else f"'{kind}'"
    async with log.connected() as con:
        await con.execute(f"CREATE TEMP VIEW pg_stat_activity AS {activity.replace('$1', literal)}")
        assert [row["pid"] for row in await con.fetch(queue_sql.SNAPSHOT)] == pids


async def test_the_snapshot_of_a_manual_vacuum_keeps_no_rows(log: Log) -> None:
    async with log.connected() as con, log.connected() as other, other.transaction():
        await other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        pid = await other.fetchval("SELECT pg_backend_pid() FROM pg_class LIMIT 1")
        await con.execute("CREATE TEMP TABLE pg_stat_progress_vacuum (pid int)")
        assert pid in [row["pid"] for row in await con.fetch(queue_sql.SNAPSHOT)]
        await con.execute("INSERT INTO pg_stat_progress_vacuum VALUES ($1)", pid)
        assert pid not in [row["pid"] for row in await con.fetch(queue_sql.SNAPSHOT)]


async def test_open_transactions_are_named(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has enqueued, whose jobs are invisible, and one with an old snapshot."""
    monkeypatch.setattr("sluicegate.postgres.queues.report.LONG", 0.0)
    async with operated(log) as (_, admin):
        await admin.create("mails")
        options = {"server_settings": {"application_name": "importer"}}
        async with log.connected(**options) as other:
            async with other.transaction():
                await insert(other, log, "mails", ("a", 1))
                pid = await other.fetchval("SELECT pg_backend_pid()")
                report = await admin.explain("mails")
                assert report.writer is not None
                assert (report.writer.pid, report.writer.application) == (pid, "importer")
                assert "an open transaction has written jobs" in await notes(admin)
            async with other.transaction(isolation="repeatable_read"):
                await other.fetchval("SELECT count(*) FROM pg_class")
                report = await admin.explain("mails")
                assert report.snapshot is not None
                assert report.snapshot.application == "importer"
                assert "an old snapshot keeps vacuum from removing" in await notes(admin)
        assert (await admin.explain("mails")).writer is None


async def test_jobs_that_were_inserted_without_their_trigger_are_told(
    log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the administration, the command, and a consumer, which ends and leaves them."""
    lost = "jobs of 2 keys or more have neither a lane nor a bell"
    jobs = [("a", 1), ("a", 2), ("b", 3), (None, 4), ("c", 5)]
    async with operated(log) as (con, admin):
        await admin.create("mails")
        await con.execute("SET session_replication_role = replica")
        await insert(con, log, "mails", *jobs[:4])
        await con.execute("RESET session_replication_role")
        await insert(con, log, "mails", *jobs[4:])
        assert await handled_by_consumer(log, lost) == [4, 5]
        stats = await admin.lag()
        assert stats["mails"].without_lane == 2
        print_queue_lag(stats, 100, in_json=False)
        assert f"mails: {lost}" in capsys.readouterr().out
        assert lost in await notes(admin)
        assert "neither a lane nor a bell" in await why(admin, "a")
        await con.execute(f"SELECT {log.sql}.ring_again('mails')")
        assert await handled_by_consumer(log, None) == [1, 2, 3]
        assert (await admin.lag())["mails"].without_lane == 0


async def handled_by_consumer(log: Log, trouble: str | None) -> list[int]:
    """Handle all jobs that claims find, until this trouble is told; return their payloads."""
    source = Watched(log.dsn, queue="mails", schema=log.schema, poll=0.02, ends=True)
    found: list[int] = []

    async def handle(message: Message) -> None:
        found.append(json.loads(message.value))

    await Consumer(source, name="test").run(handle)
    assert source.trouble is None if trouble is None else trouble in str(source.trouble)
    return sorted(found)
