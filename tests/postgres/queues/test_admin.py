"""Settings of queues: created once, checked before anything is sent, changed within limits.

White box: the stored settings and the figures of one queue.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.queues.jobs_help import claim, handled, insert
from tests.postgres.queues.operated_help import WITHIN, fail, operated
from tests.postgres.sink.postgres_help import proxied
from tests.postgres.streams.log_help import Log, role

from sluicegate import ClosedError, ConfigError, RefusedError, UnavailableError
from sluicegate.postgres import PostgresAccess, QueueAdmin, install_streams
from sluicegate.postgres.queues.jobs import JOB_STATES
from sluicegate.postgres.queues.queries import QueueQueries
from sluicegate.postgres.queues.settings import QueueSettings

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")
OTHERS: dict[str, Any] = {
    "slot_function": "blake3",
    "sticky": True,
    "poison": "skip",
    "max_attempts": 3,
    "max_depth": 10,
    "max_in_flight": 4,
    "key_rate": 0.5,
    "keep_done": timedelta(days=1),
    "keep_dead": 60.0,
}


@pytest.mark.parametrize("poison", ["skip", "park_key"])
def test_an_ordered_queue_lets_no_job_pass_one_that_fails(poison: Any) -> None:
    """Q-T9, Q8: refused when the settings are created, before anything is sent."""
    with pytest.raises(ConfigError, match=r'later jobs would pass.*use "block"'):
        QueueSettings(ordering_required=True, poison=poison)


@pytest.mark.parametrize("poison", ["block", "block_and_dead_letter"])
async def test_an_ordered_queue_may_block(log: Log, poison: Any) -> None:
    """Q-T9."""
    async with operated(log) as (con, admin):
        stored = await admin.create("line", ordering_required=True, poison=poison)
        assert stored.settings.poison == poison
        assert await con.fetchval(f"SELECT poison FROM {log.sql}.queue") == poison


def test_the_default_for_poison_fits_the_order() -> None:
    assert QueueSettings().poison == "park_key"
    assert QueueSettings(ordering_required=True).poison == "block"


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"slot_function": "md5"}, "slot_function='md5': must be one of 'sha256', 'blake3'"),
        ({"sticky": 1}, "sticky=1: must be True or False"),
        ({"poison": "drop"}, "poison='drop': must be one of"),
        ({"max_attempts": 0}, "max_attempts=0: must be a whole number of at least 1"),
        ({"max_attempts": 2**31}, "must be at most 2147483647"),
        ({"max_depth": 0}, "max_depth=0: must be a whole number of at least 1"),
        ({"max_in_flight": True}, "max_in_flight=True: must be a whole number"),
        ({"key_rate": 0}, "key_rate=0: must be a number per second"),
        ({"keep_done": -1}, "keep_done=-1: must be more than 0 seconds"),
        ({"keep_dead": "1d"}, "keep_dead='1d': must be more than 0 seconds"),
    ],
)
async def test_bad_settings_are_told_before_a_connection(settings: Any, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        await QueueAdmin("postgresql://nowhere.invalid/x").create("jobs", **settings)


async def test_a_queue_is_made_once_with_its_settings(log: Log) -> None:
    """Q18: equal settings find the queue; different ones are an error that says what to do."""
    async with operated(log) as (_, admin):
        made = await admin.create("mails", **OTHERS)
        assert made.settings == QueueSettings(**dict(OTHERS, keep_dead=timedelta(seconds=60)))
        assert await admin.create("mails", **OTHERS) == made
        assert await admin.queues() == {"mails": made}
        with pytest.raises(ConfigError, match=r"max_attempts=5: .* max_attempts=3; .* alter\(\)"):
            await admin.create("mails", **dict(OTHERS, max_attempts=5))
        with pytest.raises(ConfigError, match=r"queue='mail': is not in the schema .* mails"):
            await admin.lag("mail")
        with pytest.raises(ConfigError, match="at most 200 bytes"):
            await admin.create("m" * 201)


async def test_settings_change_in_use_as_far_as_they_may(log: Log) -> None:
    """Q18: settings that determine the jobs' rows need an empty queue; combinations are checked as
    at creation.
    """
    async with operated(log) as (con, admin):
        await admin.create("mails")
        await insert(con, log, "mails", ("a", 1))
        stored = await admin.alter("mails", max_attempts=2, keep_done=3600)
        assert (stored.settings.max_attempts, stored.settings.keep_done) == (2, timedelta(hours=1))
        changes = (admin.alter("mails", sticky=True), admin.alter("mails", slot_function="blake3"))
        for change in changes:
            with pytest.raises(RefusedError, match=r"the queue mails has jobs.*may not change"):
                await change
        with pytest.raises(ConfigError, match="later jobs would pass"):
            await admin.alter("mails", ordering_required=True)
        with pytest.raises(ConfigError, match="settings='colour': must be among"):
            await admin.alter("mails", colour="red")  # type: ignore[call-arg]  # what is tested
        assert await handled(con, log, "mails") == [1]
        stored = await admin.alter("mails", ordering_required=True, poison="block")
        await insert(con, log, "mails", ("a", 2), ("b", 3))
        assert [row["r_lane"] for row in await claim(con, log, "mails")] == ["", ""]


async def test_an_open_transaction_may_have_enqueued_already(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of settings that determine the jobs' rows waits for it, and is refused after a
    timeout.
    """
    monkeypatch.setattr("sluicegate.postgres.queues.admin._WAIT", "SET LOCAL lock_timeout = '50ms'")
    async with operated(log) as (con, admin):
        await admin.create("mails")
        async with con.transaction():
            await insert(con, log, "mails", ("a", 1))
            with pytest.raises(RefusedError, match=r"open transactions .* did not end in time"):
                await admin.alter("mails", sticky=True)


async def test_a_pause_gives_out_nothing(log: Log) -> None:
    async with operated(log) as (con, admin):
        await admin.create("mails")
        await insert(con, log, "mails", ("a", 1), (None, 2))
        await admin.pause("mails")
        assert await claim(con, log, "mails") == []
        assert (await admin.lag("mails"))["mails"].is_paused
        await admin.resume("mails")
        assert len(await claim(con, log, "mails")) == 2


async def test_a_queue_is_dropped_when_it_is_empty_or_by_force(log: Log) -> None:
    """Nothing of it remains, and other queues keep their data."""
    async with operated(log) as (con, admin):
        for name in ("mails", "other"):
            await admin.create(name, poison="skip", max_attempts=1)
            await insert(con, log, name, ("a", 1), ("b", 2))
        with pytest.raises(RefusedError, match="the queue mails has jobs"):
            await admin.drop("mails")
        assert await fail(con, log, "mails") == "dead"
        await con.execute(f"UPDATE {log.sql}.lane SET lease_until = now()")
        await handled(con, log, "mails")
        with pytest.raises(RefusedError, match="has 1 dead letters"):
            await admin.drop("mails")
        await insert(con, log, "mails", ("a", 3), ("a", 4), (None, 5))
        done: list[int] = []
        await admin.drop("mails", force=True, on_batch=done.append)
        assert done == [3]
        assert [*await admin.queues()] == ["other"]
        for table in ("job", "lane", "bell", "finished_job"):
            assert not await con.fetchval(
                f"SELECT count(*) FROM {log.sql}.{table} WHERE queue = 'mails'"
            )
        assert (await admin.lag("other"))["other"].jobs == 2


async def test_lag_counts_what_waits_and_how_long(log: Log) -> None:
    """Ready keys, bells, delayed jobs, leases, stopped keys and dead letters; up to a limit."""
    async with operated(log) as (con, admin):
        await admin.create("mails", max_attempts=1)
        await insert(con, log, "mails", *((f"k{n}", n) for n in range(4)), (None, 5), (None, 6))
        await con.execute(
            f"INSERT INTO {log.sql}.job (queue, key, payload, due) "
            "VALUES ('mails', 'later', '1', now() + interval '1 hour')"
        )
        await con.execute(f"UPDATE {log.sql}.job SET at = at - interval '1 minute'")
        stats = (await admin.lag())["mails"]
        assert (stats.jobs, stats.ready, stats.delayed, stats.bells) == (7, 2, 1, 4)
        assert 60 <= stats.oldest_seconds < 120
        assert stats.next_due is not None
        assert 3500 < stats.next_due <= 3600
        sql = f"SELECT * FROM {log.sql}.claim_jobs('mails', 'g', 'one', $1, 1, $2, 30)"
        assert len(await con.fetch(sql, 1, 0)) == 1
        assert len(await con.fetch(sql, 1, 1)) == 2
        await fail(con, log, "mails")
        await (await admin.keys("mails")).park("gone")
        stats = (await admin.lag("mails"))["mails"]
        assert (stats.leased, stats.parked, stats.blocked, stats.bells) == (5, 2, 0, 0)
        assert (await admin.lag("mails", count_to=2))["mails"].jobs == 2


async def test_an_expired_lease_is_ready_since_it_expired(log: Log) -> None:
    """Also in an ordered queue, where jobs without a key are not ready individually."""
    async with operated(log) as (con, admin):
        await admin.create("line", ordering_required=True)
        await insert(con, log, "line", (None, 1), (None, 2))
        await claim(con, log, "line")
        stats = (await admin.lag("line"))["line"]
        assert (stats.ready, stats.leased, stats.oldest_seconds) == (0, 1, 0)
        await con.execute(f"UPDATE {log.sql}.lane SET lease_until = now() - interval '1 minute'")
        stats = (await admin.lag("line"))["line"]
        assert (stats.ready, stats.leased) == (1, 0)
        assert 60 <= stats.oldest_seconds < 120


async def test_a_wrong_schema_or_role_is_one_clear_error(
    log: Log, embedded_postgres: EmbeddedPostgres
) -> None:
    with pytest.raises(ConfigError, match="schema='nowhere': does not exist"):
        async with QueueAdmin(log.dsn, schema="nowhere"):
            pass
    async with operated(log) as (_, admin), role(log) as worker, role(log) as operator:
        await admin.create("mails")
        await install_streams(
            log.dsn, schema=log.schema, work=[worker.name], operate=[operator.name]
        )
        async with QueueAdmin(worker.dsn, schema=log.schema) as theirs:
            assert (await theirs.lag("mails"))["mails"].jobs == 0
            assert not (await theirs.explain("mails")).lanes
            with pytest.raises(RefusedError, match=r"permission denied.*--operate"):
                await theirs.pause("mails")
        async with QueueAdmin(operator.dsn, schema=log.schema) as theirs:
            await theirs.create("more", sticky=True)
            await theirs.pause("mails")
            await (await theirs.keys("mails")).park("a")
            jobs = await theirs.jobs("mails")
            for state in (None, *JOB_STATES):
                assert not (await jobs.list(state)).items
            assert await jobs.cancel([1]) == await jobs.retry([1]) == {1: "missing"}
            assert await jobs.show(1) is None
            await jobs.purge("waiting")
            await (await theirs.routing("more", "g")).assign([(0, 65535, "one")])
            with pytest.raises(RefusedError, match="permission denied"):
                await theirs.drop("mails")


async def test_statements_work_unprepared_behind_a_pooler(log: Log) -> None:
    """Each is already in a transaction block, and changes of several statements stay atomic."""
    async with QueueAdmin(
        PostgresAccess(log.dsn, prepared_statements=False), schema=log.schema
    ) as admin:
        await admin.create("mails", sticky=True)
        routing = await admin.routing("mails", "g")
        await routing.assign([(0, 65_535, "A")])
        with pytest.raises(ConfigError, match="overlaps only in part"):
            await routing.assign([(0, 9, "B")], complete=False)
        await routing.move(0, 9, "B")
        assert [each.consumer for each in await routing.ranges()] == ["B", "A"]
        await admin.alter("mails", sticky=False)
        await admin.drop("mails")
        assert await admin.queues() == {}


async def test_errors_of_the_server_are_told_for_an_operator(log: Log) -> None:
    """For an administration that is not open, and a queue that no longer exists."""
    async with operated(log) as (_, admin):
        stored = await admin.create("mails")
        with pytest.raises(ClosedError, match="is not open"):
            await QueueAdmin(log.dsn).queues()
        jobs = await admin.jobs("mails")
        keys = await admin.keys("mails")
        routed = await admin.create("routed", sticky=True)
        routing = await admin.routing(routed.name, "g")
        for name in ("mails", "routed"):
            await admin.drop(name)
        with pytest.raises(ConfigError, match="there is no queue routed"):
            await routing.move(0, 9, "A")
        assert await jobs.purge("waiting") == 0
        assert await keys.lanes() == []
        assert stored.name == "mails"
        assert await QueueQueries(admin._access_now).stats(stored, 1) is None
        shown = [repr(each) for each in (jobs, keys, routing, admin)]
        assert shown[:3] == [
            "JobAdmin('mails')",
            "LaneAdmin('mails')",
            "RangeAdmin('routed', group='g')",
        ]
        assert "password" not in shown[3]


async def test_a_lost_connection_is_told_and_the_next_call_has_another(log: Log) -> None:
    async with asyncio.timeout(WITHIN), proxied(log.dsn) as (proxy, dsn):
        async with QueueAdmin(dsn, schema=log.schema) as admin:
            proxy.cut_request = lambda *_: True
            with pytest.raises(UnavailableError):
                await admin.queues()
            assert await admin.queues() == {}
        assert proxy.cuts == 1
