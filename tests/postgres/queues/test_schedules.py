"""Schedules of a queue: what is stored, which ticks fire, and how often.

White box: the clock of schedules, and the function that fires one.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.queues.schedules_help import at, headers_of, scheduled, value_of
from tests.postgres.streams.log_help import role

from sluicegate import ConfigError
from sluicegate.postgres import QueueAdmin, install_streams

if TYPE_CHECKING:
    from tests.postgres.queues.schedules_help import Scheduled
    from tests.postgres.streams.log_help import Log

pytestmark = pytest.mark.usefixtures("real_clock")

HOURLY = timedelta(hours=1)
RENEWED = 10
"""Seconds between the renewals of a membership."""
WAITS = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%.schedule%'"


async def test_a_job_has_the_payload_the_key_and_the_tick_of_its_schedule(log: Log) -> None:
    async with scheduled(log, "2026-03-28T12:00") as made:
        put = await made.schedules.put(
            "nightly",
            cron=" 30 2 * * * ",
            timezone="Europe/Berlin",
            payload={"n": 1},
            key="reports",
            headers={"of": "billing"},
            priority=3,
        )
        assert put.cron == "30 2 * * *"
        assert put.next_at == at("2026-03-29T01:00"), "02:30 does not exist in that night"
        assert put.ticks(3) == [
            at("2026-03-29T01:00"),
            at("2026-03-30T00:30"),
            at("2026-03-31T00:30"),
        ]
        await made.set_clock("2026-03-29T01:00:30")
        async with made.consumer() as handled:
            message = await handled.get()
        assert value_of(message) == {"n": 1}
        assert message.key == "reports"
        assert headers_of(message) == {
            "of": "billing",
            "schedule": "nightly",
            "scheduled_for": "2026-03-29T01:00:00Z",
        }
        found = await made.schedules.show("nightly")
        assert found is not None
        assert found.last_at == at("2026-03-29T01:00")
        assert found.next_at == at("2026-03-30T00:30")
        (job,) = await (await made.admin.jobs("q")).find([found.last_job or 0])
        assert (job.state, job.priority, job.id is not None) == ("done", 3, True)


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("all", ["01:00", "02:00", "03:00", "04:00"]),
        ("last", ["03:00", "04:00"]),
        ("none", ["04:00"]),
    ],
)
async def test_ticks_that_were_missed(log: Log, catch_up: Any, expected: list[str]) -> None:
    """No consumer was live from midnight to half past three; the tick of four is on time."""
    async with scheduled(log) as made:
        await made.schedules.put("hourly", every=HOURLY, catch_up=catch_up)
        await made.set_clock("2026-01-01T03:30")
        async with made.consumer() as handled:
            for _ in expected[:-1]:
                await handled.get()
            await until_next(made, "hourly", "2026-01-01T04:00")
            await made.set_clock("2026-01-01T04:00:59")
            await handled.get()
        assert await made.fired() == [f"2026-01-01T{each}" for each in expected]


async def until_next(made: Scheduled, name: str, text: str) -> None:
    """Wait until this is the next tick."""
    query = f"SELECT next_at FROM {made.log.sql}.schedule, pg_sleep(0.01) WHERE name = $1"
    while await made.con.fetchval(query, name) != at(text):
        pass


async def test_many_missed_ticks_fire_in_order_and_at_once(log: Log) -> None:
    async with scheduled(log) as made:
        await made.schedules.put("minutely", cron="* * * * *", catch_up="all", key="k")
        await made.set_clock("2026-01-02T18:00")
        async with made.consumer():
            await until_next(made, "minutely", "2026-01-02T18:01")
        found = await made.fired()
        assert len(found) == 42 * 60
        assert found == sorted({*found})
        assert found[0] == "2026-01-01T00:01"
        assert found[-1] == "2026-01-02T18:00"


async def test_a_tick_fires_once_although_the_server_clock_steps(log: Log) -> None:
    async with scheduled(log) as made:
        await made.schedules.put("hourly", every=HOURLY, catch_up="all")
        async with made.consumer() as handled:
            for now in ("01:00", "00:00", "01:30", "02:00", "01:00", "02:59", "03:00"):
                await made.set_clock(f"2026-01-01T{now}")
                if now in {"01:00", "02:00", "03:00"} and len(await made.fired()) < int(now[1]):
                    await handled.get()
            await until_next(made, "hourly", "2026-01-01T04:00")
        assert await made.fired() == [f"2026-01-01T0{n}:00" for n in (1, 2, 3)]


async def fire(made: Scheduled, con: Any, revision: int, due: str, *ticks: str) -> bool:
    first, *others = [int(at(each).timestamp()) for each in (due, *ticks)]
    query = f"SELECT {made.log.sql}.fire_schedule('q', 'hourly', $1, $2, $3, $4, NULL)"
    return bool(await con.fetchval(query, revision, first, others, first + 3600))


async def test_of_several_sessions_one_fires_a_tick(log: Log) -> None:
    """The others do not wait for it, and find the tick fired, also when the schedule is new again."""
    async with scheduled(log, "2026-01-01T00:30") as made, log.connected() as other:
        tick = "2026-01-01T01:00"
        await made.schedules.put("hourly", every=HOURLY)
        assert not await fire(made, made.con, 1, tick, tick), "it is not due"
        await made.set_clock("2026-01-01T01:00")
        assert not await fire(made, made.con, 2, tick, tick), "another revision"
        assert not await fire(made, made.con, 1, tick, "2026-01-01T02:00"), "not due"
        assert not await fire(made, made.con, 1, tick, "2026-01-01T00:00"), "before it"
        async with made.con.transaction():
            assert await fire(made, made.con, 1, tick, tick)
            assert not await fire(made, other, 1, tick, tick)
        assert not await fire(made, other, 1, tick, tick)
        assert await made.fired() == [tick]
        # a schedule that is deleted and created while the server's clock is set back
        await made.schedules.delete("hourly")
        await made.set_clock("2026-01-01T00:30")
        await made.schedules.put("hourly", every=HOURLY)
        await made.set_clock("2026-01-01T01:00")
        assert await fire(made, other, 1, tick, tick)
        assert await made.fired() == [tick]
        found = await made.schedules.show("hourly")
        assert found is not None
        assert found.last_job is not None


async def test_a_change_of_the_times_drops_ticks_that_have_not_fired(log: Log) -> None:
    async with scheduled(log) as made:
        await made.schedules.put("hourly", every=HOURLY, catch_up="all")
        await made.set_clock("2026-01-01T02:10")
        kept = await made.schedules.put("hourly", every=3600, catch_up="last", payload=2)
        assert kept.next_at == at("2026-01-01T01:00"), "the same times: its ticks stay"
        changed = await made.schedules.put("hourly", cron="*/15 * * * *", catch_up="all")
        assert changed.next_at == at("2026-01-01T02:15")
        assert not await fire(made, made.con, 1, "2026-01-01T01:00", "2026-01-01T01:00")
        assert changed.created_at == kept.created_at
        await made.set_clock("2026-01-01T02:30")
        async with made.consumer():
            await until_next(made, "hourly", "2026-01-01T02:45")
        # a tick that has fired is not computed again while the clock is set back
        await made.set_clock("2026-01-01T01:00")
        again = await made.schedules.put("hourly", cron="0,30 * * * *")
        assert again.next_at == at("2026-01-01T03:00")
        assert await made.fired() == ["2026-01-01T02:15", "2026-01-01T02:30"]


async def test_a_paused_schedule_fires_nothing_and_drops_its_ticks(log: Log) -> None:
    async with scheduled(log) as made:
        await made.schedules.put("hourly", every=HOURLY, catch_up="all")
        await made.schedules.pause("hourly")
        await made.schedules.put("other", every=HOURLY, catch_up="all")
        await made.set_clock("2026-01-01T02:10")
        async with made.consumer():
            await until_next(made, "other", "2026-01-01T03:00")
        found = await made.schedules.put("hourly", every=HOURLY, catch_up="all")
        assert found.is_paused, "as it was"
        assert found.ticks() == []
        await made.schedules.resume("hourly")
        found = (await made.schedules.list()).items[0]
        assert (found.is_paused, found.next_at) == (False, at("2026-01-01T03:00"))
        await made.schedules.pause("hourly")
        await made.set_clock("2026-01-01T04:10")
        await made.schedules.resume("hourly")
        shown = await made.schedules.show("hourly")
        assert shown is not None
        assert shown.next_at == at("2026-01-01T05:00")
        assert await made.fired() == ["2026-01-01T01:00", "2026-01-01T02:00"]


async def test_a_consumer_learns_of_a_new_schedule_and_fires_it_in_time(log: Log) -> None:
    """By the server's own clock, and with few renewals of its membership."""
    async with scheduled(log) as made:
        await made.con.execute(f"UPDATE {log.sql}.clock SET now = NULL")
        await made.con.execute(
            f"CREATE OR REPLACE FUNCTION {log.sql}.schedule_now() RETURNS timestamptz "
            "LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()'"
        )
        async with made.consumer() as handled:
            await made.schedules.put("often", every=1, catch_up="all", key="k")
            ticks = [headers_of(await handled.get())["scheduled_for"] for _ in range(3)]
            now = await made.con.fetchval("SELECT clock_timestamp()")
        seconds = [at(each.removesuffix("Z")) for each in ticks]
        assert seconds == [seconds[0] + timedelta(seconds=n) for n in range(3)]
        assert now - seconds[-1] < timedelta(seconds=RENEWED)


async def test_a_job_may_be_run_now_beside_the_ticks(log: Log) -> None:
    async with scheduled(log, "2026-01-01T00:12", slot_function="blake3") as made:
        await made.schedules.put("hourly", every=HOURLY, key="k")
        await made.schedules.pause("hourly")
        before = await made.schedules.show("hourly")
        place = await made.schedules.run_now("hourly")
        assert await made.schedules.run_now("hourly") > place
        assert await made.fired() == ["2026-01-01T00:12"] * 2
        assert await made.schedules.show("hourly") == before


async def test_a_key_of_a_queue_with_its_own_slots_is_fired(log: Log) -> None:
    async with scheduled(log, slot_function="blake3") as made:
        await made.schedules.put("hourly", every=HOURLY, key="k")
        await made.set_clock("2026-01-01T01:00")
        async with made.consumer() as handled:
            await handled.get()
        assert await made.fired() == ["2026-01-01T01:00"]


async def test_a_schedule_that_cannot_be_fired_does_not_delay_others(log: Log) -> None:
    """Its times are unknown to this process; the consumer goes on, and reports it."""
    async with scheduled(log) as made:
        await made.schedules.put("bad", every=HOURLY)
        await made.schedules.put("good", every=HOURLY)
        await made.con.execute(
            f"UPDATE {log.sql}.schedule SET every = NULL, cron = '0 * * * *', timezone = 'Moon/Base' "
            "WHERE name = 'bad'"
        )
        await made.set_clock("2026-01-01T01:00")
        async with made.consumer() as handled:
            assert headers_of(await handled.get())["schedule"] == "good"
            await made.set_clock("2026-01-01T02:00")
            assert headers_of(await handled.get())["schedule"] == "good"


async def test_a_full_queue_delays_a_tick(log: Log) -> None:
    async with scheduled(log, max_depth=1) as made:
        await made.schedules.put("hourly", every=HOURLY)
        await made.schedules.run_now("hourly")
        await made.admin.pause("q")
        await made.set_clock("2026-01-01T01:00")
        async with made.consumer() as handled:
            await made.admin.resume("q")
            await handled.get()
            await handled.get()
        assert await made.fired() == ["2026-01-01T00:00", "2026-01-01T01:00"]


@pytest.mark.parametrize("catch_up", ["all", "none"])
async def test_more_ticks_than_a_queue_has_room_for_fire_in_parts(log: Log, catch_up: Any) -> None:
    """Also if all of them are on time."""
    async with scheduled(log, max_depth=20) as made:
        await made.schedules.put("often", every=1, catch_up=catch_up)
        await made.set_clock("2026-01-01T00:00:40")
        async with made.consumer() as handled:
            ticks = [headers_of(await handled.get())["scheduled_for"] for _ in range(40)]
        assert sorted(ticks) == [f"2026-01-01T00:00:{n:02}Z" for n in range(1, 41)]


async def test_many_schedules_that_cannot_be_fired_do_not_delay_others(log: Log) -> None:
    async with scheduled(log) as made:
        await made.con.execute(
            f"INSERT INTO {log.sql}.schedule "
            "(queue, name, cron, timezone, payload, catch_up, next_at) SELECT 'q', 'bad ' || n, "
            "'* * * * *', 'Moon/Base', '1', 'last', '2026-01-01 00:00Z' FROM generate_series(1, 1001) n"
        )
        await made.schedules.put("good", every=HOURLY)
        await made.set_clock("2026-01-01T01:00")
        async with made.consumer() as handled:
            assert headers_of(await handled.get())["schedule"] == "good"


async def test_schedules_are_listed_in_pages_and_deleted(log: Log) -> None:
    async with scheduled(log) as made:
        for name in "abcde":
            await made.schedules.put(name, cron="0 0 1 1 *")
        first = await made.schedules.list(limit=2)
        second = await made.schedules.list(limit=2, after=first.next)
        last = await made.schedules.list(limit=2, after=second.next)
        pages = [[each.name for each in page.items] for page in (first, second, last)]
        assert pages == [["a", "b"], ["c", "d"], ["e"]]
        assert last.next is None
        await made.schedules.delete("a")
        assert await made.schedules.show("a") is None
        for change in (made.schedules.delete, made.schedules.pause, made.schedules.resume):
            with pytest.raises(ConfigError, match=r"schedule.*'a'.*does not exist.*b, c, d"):
                await change("a")
        with pytest.raises(ConfigError, match="does not exist"):
            await made.schedules.run_now("a")
        await made.admin.drop("q")
        assert await made.con.fetchval(f"SELECT count(*) FROM {log.sql}.schedule") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "schedule"),
        ({"name": "n" * 201}, "schedule.*200 bytes"),
        ({"payload": "x" * 70_000}, "payload.*65536"),
        ({"payload": object()}, "payload"),
        ({"headers": {"scheduled_for": "1"}}, "headers.*scheduled_for"),
        ({"key": -1}, "key"),
        ({"priority": 1 << 15}, "priority"),
        ({"catch_up": "some"}, "catch_up"),
        ({"every": None}, "cron"),
        ({"timezone": "Europe/Berlin"}, "timezone"),
    ],
)
async def test_bad_arguments_are_refused(log: Log, arguments: dict[str, Any], message: str) -> None:
    async with scheduled(log) as made:
        given: dict[str, Any] = {"name": "hourly", "every": HOURLY, **arguments}
        with pytest.raises(ConfigError, match=message):
            await made.schedules.put(**given)
        assert (await made.schedules.list()).items == ()


async def test_two_that_create_a_schedule_at_once_both_succeed(log: Log) -> None:
    async with scheduled(log) as made, QueueAdmin(log.dsn, schema=log.schema) as admin:
        async with made.con.transaction():
            await made.con.execute(
                f"INSERT INTO {log.sql}.schedule (queue, name, every, timezone, payload, catch_up, "
                "next_at) VALUES ('q', 'hourly', 60, 'UTC', '1', 'last', '2026-01-01 00:01Z')"
            )
            second = asyncio.create_task(
                (await admin.schedules("q")).put("hourly", every=HOURLY, payload=2)
            )
            async with log.connected() as other:
                while not await other.fetch(WAITS):
                    pass
        found = await second
        assert (found.payload, found.next_at) == (2, at("2026-01-01T01:00"))


async def test_a_schedule_that_is_deleted_while_it_is_put_is_created(log: Log) -> None:
    async with scheduled(log) as made, QueueAdmin(log.dsn, schema=log.schema) as admin:
        await made.schedules.put("hourly", every=HOURLY)
        async with made.con.transaction():
            await made.con.execute(f"SELECT FROM {log.sql}.schedule FOR UPDATE")
            second = asyncio.create_task((await admin.schedules("q")).put("hourly", every=60))
            async with log.connected() as other:
                while not await other.fetch(WAITS):
                    pass
            await made.con.execute(f"DELETE FROM {log.sql}.schedule")
        assert (await second).next_at == at("2026-01-01T00:01")


async def test_an_operator_writes_schedules_that_a_worker_fires(log: Log) -> None:
    async with scheduled(log) as made, role(log) as operator, role(log) as worker:
        await install_streams(log.dsn, schema=log.schema, operate=operator.name, work=worker.name)
        async with QueueAdmin(operator.dsn, schema=log.schema) as admin:
            schedules = await admin.schedules("q")
            await schedules.put("hourly", every=HOURLY)
            await schedules.pause("hourly")
            await schedules.resume("hourly")
            await schedules.put("other", every=HOURLY)
            await schedules.delete("other")
            await schedules.run_now("hourly")
        await made.set_clock("2026-01-01T01:00")
        async with made.consumer(dsn=worker.dsn) as handled:
            await handled.get()
            await handled.get()
        assert await made.fired() == ["2026-01-01T00:00", "2026-01-01T01:00"]


async def test_explain_tells_the_next_tick_and_paused_schedules(log: Log) -> None:
    async with scheduled(log) as made:
        await made.schedules.put("late", every=HOURLY)
        await made.schedules.put("quiet", every=60)
        await made.schedules.pause("quiet")
        notes = "\n".join((await made.admin.explain("q")).notes)
        assert "the next tick of the schedule late is in 3600 s" in notes
        assert "paused schedules: quiet;" in notes
        assert "no consumer is registered" in notes
        await made.set_clock("2026-01-01T01:00:07")
        notes = "\n".join((await made.admin.explain("q")).notes)
        assert "the next tick of the schedule late is 7 s overdue" in notes
