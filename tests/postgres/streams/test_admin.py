"""Operation of subscriptions: the reports, and the effect of changes on consumers.

White box: shorter intervals of the checks and of the leases' extensions.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.streams.log_help import Log, role
from tests.postgres.streams.served_help import consumed, served, stored_offsets
from tests.postgres.streams.source.test_failures import WITHIN, StreamHost, fetched

from sluicegate import ConfigError, RefusedError, flow
from sluicegate.consumer import Position
from sluicegate.postgres import (
    PostgresEffects,
    PostgresSubscriptions,
    SubscriptionAdmin,
    install_streams,
)
from sluicegate.postgres.streams import holding, options

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sluicegate import Message
    from sluicegate.batcher import LoopClock

pytestmark = pytest.mark.usefixtures("real_clock")


@pytest.fixture(autouse=True)
def frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make processes notice changes quickly."""
    monkeypatch.setattr(options, "CHECK_EVERY", 0.05)


@asynccontextmanager
async def operated(log: Log) -> AsyncGenerator[tuple[Any, SubscriptionAdmin]]:
    """A connection, and an administration."""
    async with (
        asyncio.timeout(WITHIN),
        log.connected() as con,
        SubscriptionAdmin(log.dsn, schema=log.schema) as admin,
    ):
        yield con, admin


async def slot_of(log: Log, con: Any, stream: str) -> int:
    return int(await con.fetchval(f"SELECT {log.sql}.slot_of($1)", stream))


async def test_lag_is_what_was_not_handled_by_subscription_and_by_slot(log: Log) -> None:
    """S-T4: compared with a separate query; a selection counts its own streams only."""
    async with operated(log) as (con, admin):
        await log.append(con, "a-1", 0, 1)
        assert await consumed(log) == [1, 2]
        assert await consumed(log, "only-b", category="b") == []
        await log.append(con, "a-1", 2, 3, 4)
        await log.append(con, "b-1", 0)
        lag = await admin.lag()
        assert {name: each.backlog and each.backlog.messages for name, each in lag.items()} == {
            "only-b": 1,
            "s": 4,
        }
        (stats,) = (await admin.lag("s", count_to=2)).values()
        assert stats.backlog is not None
        assert (stats.backlog.messages, stats.backlog.waiting_slots) == (2, 2)
        age = (
            f"SELECT extract(epoch FROM clock_timestamp() - at)::float8 FROM {log.sql}.message "
            "WHERE position = 3"
        )
        least = await con.fetchval(age)
        found = {each.slot: each for each in (await admin.explain("s")).slots if each.messages}
        slot = await slot_of(log, con, "a-1")
        assert (found[slot].messages, found[slot].oldest, found[slot].position) == (3, 3, 3)
        assert least <= found[slot].seconds <= await con.fetchval(age)
        assert set(found) == {slot, await slot_of(log, con, "b-1")}


async def test_a_report_says_why_slots_stand(log: Log) -> None:
    """S18: no process, a process with its lease, a pause, the horizon and its transaction."""
    async with operated(log) as (con, admin):
        await log.append(con, "a-1", 0)
        await consumed(log)
        await log.append(con, "a-1", 1)
        slot = await slot_of(log, con, "a-1")

        async def reason(of: int = slot) -> str | None:
            report = await admin.explain("s")
            return report.reason(report.slots[of])

        assert await reason() == "no process serves the subscription"
        assert await reason(slot ^ 1) is None
        async with served(log, lease=20.0).open(host := StreamHost()):
            await host.wait_for_claims(256)
            owner = await con.fetchval(
                f"SELECT owner FROM {log.sql}.subscription_slot WHERE slot = $1", slot
            )
            assert f"held by {owner}, whose lease has" in str(await reason())
            assert (await admin.explain("s")).members == 1
        await admin.pause("s", [slot])
        assert await reason() == "paused"
        assert await consumed(log, "other") == [1, 2]
        async with log.connected(server_settings={"application_name": "importer"}) as other:
            await other.execute("BEGIN")
            await log.append(other, "b-1", 0)
            await log.append(con, "c-1", 0)
            report = await admin.explain("other")
            assert report.horizon.distance == 2
            behind = report.slots[await slot_of(log, con, "c-1")]
            assert report.reason(behind) == "its next message is beyond the horizon"
            pid = await other.fetchval("SELECT pg_backend_pid()")
            told = report.why_horizon_stands
            assert told is not None
            assert f"(pid {pid}, application 'importer', user '" in told
            assert report.appender is not None
            assert report.appender.state == "idle in transaction"
            await other.execute("ROLLBACK")
        assert (await admin.explain("other")).why_horizon_stands is None


async def test_a_paused_subscription_delivers_nothing_until_a_resume(log: Log) -> None:
    """The serving process reports it; another subscription continues."""
    async with operated(log) as (con, admin):
        reader, other = served(log), served(log, "other")
        async with reader.open(host := StreamHost()), other.open(beside := StreamHost()):
            await host.wait_for_claims(256)
            await beside.wait_for_claims(256)
            await admin.pause("s")
            await host.trouble("the subscription is paused: `sluicegate stream resume`")
            waiting = asyncio.create_task(fetched(reader, host))
            for number in (0, 1, 2):
                await log.append(con, "a-1", number)
                assert await fetched(other, beside) == [number + 1]
            assert not waiting.done()
            await admin.resume("s")
            assert await waiting == [1, 2, 3]
            await host.trouble(None)


async def test_a_paused_slot_waits_and_the_others_go_on(log: Log) -> None:
    """A resume of the whole subscription also resumes its slots."""
    async with operated(log) as (con, admin):
        await consumed(log)
        await log.append(con, "a-1", 0)
        await log.append(con, "b-1", 0)
        slot = await slot_of(log, con, "a-1")
        await admin.pause("s", [slot])
        reader, host = served(log), StreamHost()
        async with reader.open(host):
            await host.wait_for_claims(255)
            assert await fetched(reader, host) == [2]
            await admin.resume("s", [slot])
            await host.wait_for_claims(256)
            assert await fetched(reader, host) == [1]
        await admin.pause("s", [1, 2])
        await admin.pause("s")
        await admin.resume("s", [1])
        (stats,) = (await admin.lag("s")).values()
        assert (stats.is_paused, stats.paused_slots) == (True, 1)
        await admin.resume("s")
        (stats,) = (await admin.lag("s")).values()
        assert (stats.is_paused, stats.paused_slots) == (False, 0)


@pytest.mark.parametrize(
    ("point", "first", "expected"),
    [
        ("beginning", 0, [1, 2, 3, 5]),
        ("next", 5, [5]),
        (3, 3, [3, 5]),
        ("time", 2, [2, 3, 5]),
        (4, 4, [5]),
    ],
)
async def test_a_consumer_goes_on_where_a_reset_says(
    log: Log, point: Any, first: int, expected: list[int]
) -> None:
    """S-T5: the beginning, the next message, a position, a time; positions move in both
    directions.
    """
    async with operated(log) as (con, admin):
        await log.append(con, "a-1", 0)
        await log.append(con, "a-2", 1, 2)
        await con.fetchval(f"SELECT {log.sql}.next_position()")  # a gap at 4
        await consumed(log)
        if point == "time":
            point = await con.fetchval(f"SELECT at FROM {log.sql}.message WHERE position = 2")
        assert await admin.reset("s", point) == first
        assert await stored_offsets(log, con) == [first]
        await log.append(con, "a-3", 0)
        assert await consumed(log) == expected
        start = await con.fetchval(f"SELECT start FROM {log.sql}.subscription")
        assert start == (await admin.explain("s")).start != "beginning" or point == "beginning"


async def test_a_reset_to_the_next_message_takes_those_of_open_transactions(log: Log) -> None:
    """S-T5: messages visible beyond the horizon are skipped; those that become visible later are
    delivered.
    """
    async with operated(log) as (con, admin), log.connected() as other:
        await consumed(log)
        await other.execute("BEGIN")
        await log.append(other, "open-1", 0)
        await log.append(con, "seen-1", 0)
        assert await admin.reset("s", "next") == 1
        await other.execute("COMMIT")
        assert await consumed(log) == [1]


async def test_a_reset_is_refused_while_the_subscription_is_served(log: Log) -> None:
    """S-T11: a forced reset makes commits of earlier reads fail, and the process continues at the
    new position.
    """
    async with operated(log) as (con, admin):
        await log.append(con, "a-1", 0, 1, 2)
        slot = await slot_of(log, con, "a-1")
        reader, host = served(log), StreamHost()
        async with reader.open(host):
            old = await host.wait_for_claims(256)
            assert await fetched(reader, host) == [1, 2, 3]
            (claim,) = [each for each in old if each.partition.partition == slot]
            with pytest.raises(
                RefusedError, match="1 processes serve the subscription 's'; to rep"
            ):
                await admin.reset("s", 2)
            assert await stored_offsets(log, con) == [0]
            await admin.reset("s", 2, force=True)
            assert [*await reader.commit({claim: Position(4)})] == []
            await host.news.wait_for(lambda: all(each.is_closed for each in old))
            assert await stored_offsets(log, con) == [2]
            await host.wait_for_claims(256)
            assert await fetched(reader, host) == [2, 3]


async def test_a_store_of_an_equal_position_is_refused_after_a_reset(log: Log) -> None:
    """S-T11: because of the epoch, as the position does not show that it was moved."""
    async with operated(log) as (con, admin):
        await log.append(con, "a-1", 0)
        slot = await slot_of(log, con, "a-1")
        reader, host = served(log), StreamHost()
        async with reader.open(host):
            (claim,) = [
                each for each in await host.wait_for_claims(256) if each.partition.partition == slot
            ]
            assert await fetched(reader, host) == [1]
            await admin.reset("s", "beginning", force=True)
            assert [*await reader.commit({claim: Position(2)})] == []
        assert await stored_offsets(log, con) == [0]
        assert await consumed(log) == [1]


async def test_a_subscription_beyond_a_restored_log_goes_on_after_a_reset(log: Log) -> None:
    """S18: the error says so; a reset to the next message resolves it."""
    async with operated(log) as (con, admin):
        await log.append(con, "a-1", 0)
        await consumed(log)
        await con.execute(f"UPDATE {log.sql}.subscription_slot SET position = 1000")
        report = await admin.explain("s")
        assert "beyond the end of the log (1)" in str(report.reason(report.slots[0]))
        with pytest.raises(ConfigError, match="sluicegate stream reset"):
            await consumed(log)
        await admin.reset("s", "next")
        await log.append(con, "a-1", 1)
        assert await consumed(log) == [2]


@pytest.mark.parametrize("position", [1, 3])
async def test_a_skipped_message_is_left_out_and_its_neighbours_are_not(
    log: Log, position: int
) -> None:
    """S-T13: also after a reset; it is recorded. The position passes it, so nothing is unread."""
    async with operated(log) as (con, admin):
        await consumed(log)
        await consumed(log, "other")
        await log.append(con, "a-1", 0, 1, 2)
        skipped = await admin.skip("s", position, "broken")
        assert skipped[0] == position
        assert skipped[2:] == ("a-1", position - 1, "happened")
        slot = await slot_of(log, con, "a-1")
        assert (await admin.explain("s")).slots[slot].position == (2 if position == 1 else 0)
        rest = [each for each in (1, 2, 3) if each != position]
        assert await consumed(log) == rest
        (stats,) = (await admin.lag("s")).values()
        assert stats.backlog is not None
        assert stats.backlog.messages == 0
        assert (await admin.explain("s")).slots[slot].position == 4
        row = await con.fetchrow(f"SELECT * FROM {log.sql}.subscription_skip")
        user = await con.fetchval("SELECT session_user::text")
        assert (row["name"], row["position"], row["reason"], row["skipped_by"]) == (
            "s",
            position,
            "broken",
            user,
        )
        assert (await admin.explain("s")).skipped == (position,)
        await admin.reset("s", "beginning")
        assert await consumed(log) == rest
        assert await consumed(log, "other") == [1, 2, 3], "of another subscription"


async def test_a_flow_with_positions_of_its_own_leaves_a_skipped_message_out(log: Log) -> None:
    """S-T7: if the subscription's positions are copies."""
    async with operated(log) as (con, admin):
        found: list[int] = []

        async def handle(message: Message) -> None:
            found.append(message.offset)

        async def run() -> None:
            effects = PostgresEffects(log.dsn, positions=f"{log.schema}_positions")
            await flow.transaction(served(log, ends=True), effects, handle).run()

        await run()
        await log.append(con, "a-1", 0, 1, 2)
        await admin.skip("s", 2)
        await run()
        assert found == [1, 3]
        await log.append(con, "a-1", 3)
        await admin.skip("s", 4)
        await log.append(con, "a-1", 4)
        await run()
        assert found == [1, 3, 5]


@pytest.mark.parametrize("position", [1, 2])
async def test_a_process_gives_up_the_message_that_is_skipped(
    log: Log, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-T11, S-T13: it cannot store what it had read. It detects the first skipped message of a
    slot by the position, and later ones by its lease.
    """
    async with operated(log) as (con, admin):
        await log.append(con, "a-1", 0, 1, 2)
        slot = await slot_of(log, con, "a-1")
        if position != 1:
            monkeypatch.setattr(PostgresSubscriptions, "keep_every", 0.3)
            monkeypatch.setattr(holding, "KEEPS", 100)
        reader, host = served(log, lease=30.0), StreamHost()
        async with reader.open(host):
            claims = await host.wait_for_claims(256)
            (claim,) = [each for each in claims if each.partition.partition == slot]
            assert await fetched(reader, host) == [1, 2, 3]
            await admin.skip("s", position)
            await host.news.wait_for(lambda: claim.is_closed)
            assert [*await reader.commit({claim: Position(4)})] == []
            await host.wait_for_claims(256)
            assert await fetched(reader, host) == [each for each in (1, 2, 3) if each != position]


async def test_a_slot_moves_past_a_skipped_message_that_is_its_last(log: Log) -> None:
    """S-T4: it does not count as unread, although no record has its offset."""
    async with operated(log) as (con, admin):
        await consumed(log)
        await log.append(con, "a-1", 0, 1)
        await admin.skip("s", 2)
        reader, host = served(log), StreamHost()
        async with reader.open(host):
            claims = await host.wait_for_claims(256)
            (first,) = await reader.fetch(claims, 1) or []
            assert ([each.offset for each in first.records], first.next_offset) == ([1], 2)
            (last,) = await reader.fetch(claims, 1) or []
            assert ([*last.records], last.next_offset) == ([], 3)


async def test_a_message_that_cannot_be_skipped_is_named(log: Log) -> None:
    async with operated(log) as (con, admin):
        await log.append(con, "a-1", 0)
        await consumed(log, category="a")
        await log.append(con, "a-1", 1)
        await log.append(con, "b-1", 0)
        await log.append(con, "a-1", 2)
        await admin.skip("s", 4)
        for position, why in {
            1: "has handled",
            4: "already",
            3: "does not read",
            9: "not the",
        }.items():
            with pytest.raises(ConfigError, match=f"position={position}: .*{why}"):
                await admin.skip("s", position)
        assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.subscription_skip") == 1


async def test_a_deleted_subscription_begins_anew(log: Log) -> None:
    """Refused while it is served; if forced, the serving process fails with a named error."""
    async with operated(log) as (con, admin):
        await log.append(con, "a-1", 0)
        await consumed(log)
        reader, host = served(log), StreamHost()
        async with reader.open(host):
            await host.wait_for_claims(256)
            with pytest.raises(RefusedError, match="1 processes serve"):
                await admin.delete("s")
            await admin.delete("s", force=True)
            with pytest.raises(ConfigError, match="it was deleted while this process served it"):
                await reader.fetch(host.open, 1)
        tables = ("subscription", "subscription_slot", "subscription_member", "subscription_skip")
        for table in tables:
            assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.{table}") == 0
        assert await consumed(log, category="a") == [1]


async def test_wrong_names_arguments_and_schemas_are_named(log: Log) -> None:
    async with operated(log) as (_, admin):
        with pytest.raises(ConfigError, match=r"subscription='x'.* it has none"):
            await admin.lag("x")
        await consumed(log, "billing")
        calls = [
            admin.explain("biling"),
            admin.pause("biling"),
            admin.resume("biling", [1]),
            admin.reset("biling", "next"),
            admin.skip("biling", 1),
            admin.delete("biling"),
        ]
        for call in calls:
            with pytest.raises(ConfigError, match=r"subscription='biling'.* it has billing"):
                await call
        naive = datetime(2026, 1, 1)
        for point in (naive, -1, True, "middle"):
            with pytest.raises(ConfigError, match="with a time zone"):
                await admin.reset("billing", point)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="to=2: must be at most 1"):
            await admin.reset("billing", 2)
        for slots in ([256], [-1], []):
            with pytest.raises(ConfigError, match="slots="):
                await admin.pause("billing", slots)
        assert await admin.reset("billing", datetime.now(UTC) + timedelta(days=9)) == 1
    with pytest.raises(ConfigError, match="sluicegate pg install DSN --schema nowhere"):
        async with SubscriptionAdmin(log.dsn, schema="nowhere"):
            pass


async def test_a_role_needs_the_right_to_subscribe(log: Log, real_clock: LoopClock) -> None:
    """With it everything works; a role that may only read gets an error that names the missing
    permission.
    """
    async with operated(log) as (con, admin), role(log) as app:
        await log.append(con, "a-1", 0, 1)
        await consumed(log)
        await install_streams(log.dsn, schema=log.schema, read=app.name)
        async with SubscriptionAdmin(app.dsn, schema=log.schema) as reading:
            for call in (reading.lag(), reading.pause("s"), reading.reset("s", 0)):
                with pytest.raises(RefusedError, match="--subscribe ROLE") as caught:
                    await call
                assert "secret" not in str(caught.value)
        await install_streams(log.dsn, schema=log.schema, subscribe=app.name)
        async with SubscriptionAdmin(app.dsn, schema=log.schema) as subscribing:
            await subscribing.pause("s")
            await subscribing.resume("s")
            await subscribing.reset("s", 0)
            await subscribing.skip("s", 1)
            assert (await subscribing.explain("s")).skipped == (1,)
            await subscribing.delete("s")
        assert await admin.lag() == {}
