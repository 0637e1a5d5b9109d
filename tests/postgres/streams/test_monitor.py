"""The figures of a monitor are those of the log, and its failures affect nothing else.

White box: a selection as it is stored, and the types of figures.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest
from tests.postgres.streams.log_help import Log, role
from tests.postgres.streams.served_help import consumed, subscribe

from sluicegate import ConfigError
from sluicegate.batcher import LoopClock
from sluicegate.postgres import (
    PostgresAdvisoryLocks,
    StreamMonitor,
    StreamObserver,
    StreamRetention,
    SubscriptionAdmin,
    install_streams,
)
from sluicegate.postgres.streams.selection import StreamSelection
from sluicegate.postgres.streams.stats import Backlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.postgres.records.monitor import MonitorStats
    from sluicegate.postgres.streams.stats import LogFigures


class HandClock(LoopClock):
    """A clock that the test moves, used with a server's real time."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self._moved = asyncio.Event()

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        until = self.time + seconds
        while self.time < until:
            await self._moved.wait()

    def advance(self, seconds: float) -> None:
        self.time += seconds
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


class Polls(StreamObserver):
    """Waits for the polls of a monitor."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.polled = asyncio.Event()

    def on_open(self, name: str, stats: Callable[[], Any]) -> None:
        self.calls.append(f"open {name}")

    def on_polled(self, name: str) -> None:
        self.polled.set()

    def on_close(self, name: str) -> None:
        self.calls.append(f"close {name}")

    async def next(self) -> None:
        self.polled.clear()
        await self.polled.wait()


async def test_backlogs_are_counted_by_selection_and_up_to_a_limit(
    log: Log, real_clock: LoopClock
) -> None:
    """Messages, seconds, waiting slots and slots without an owner, for each subscription."""
    async with log.connected() as con, StreamMonitor(log.dsn, schema=log.schema) as monitor:
        positions = await log.append(con, "order-1", *range(6))
        await log.append(con, "bill-1", *range(3))
        await con.execute(
            f"UPDATE {log.sql}.message SET at = at - interval '1 hour' WHERE position = $1",
            positions[2],
        )
        await subscribe(log, con, "all", 0)
        await subscribe(log, con, "orders", positions[2], StreamSelection.of("order"))
        await subscribe(log, con, "wild", 0, StreamSelection.of(None, ["bill-*", "order-2"]))
        await subscribe(log, con, "done", 10**6)
        await con.execute(
            f"UPDATE {log.sql}.subscription SET earlier = $1 WHERE name = 'orders'", positions[4:5]
        )
        await con.execute(
            f"UPDATE {log.sql}.subscription_slot SET epoch = 1, "
            "lease_until = now() + interval '1 h' "
            f"WHERE name = 'all' AND slot = {log.sql}.slot_of('order-1')"
        )
        found = (await monitor.poll()).subscriptions
        assert {name: each.backlog and each.backlog.messages for name, each in found.items()} == {
            "all": 9,
            "orders": 3,
            "wild": 3,
            "done": 0,
        }
        backlogs = {name: each.backlog for name, each in found.items() if each.backlog}
        assert 3600 <= backlogs["orders"].seconds < 3660
        assert backlogs["wild"].seconds < 60
        assert backlogs["done"].seconds == 0
        assert (backlogs["all"].waiting_slots, backlogs["all"].unowned_slots) == (2, 1)
    async with StreamMonitor(log.dsn, schema=log.schema, count_to=4) as monitor:
        backlog = (await monitor.poll()).subscriptions["all"].backlog
        assert backlog
        assert backlog.messages == 4


async def test_members_pauses_losses_and_parked_keys_are_those_of_the_rows(
    log: Log, real_clock: LoopClock
) -> None:
    async with log.connected() as con, StreamMonitor(log.dsn, schema=log.schema) as monitor:
        await log.append(con, "a", *range(5))
        await subscribe(log, con, "s", 0)
        await con.execute(
            f"INSERT INTO {log.sql}.subscription_member SELECT 's', 'm' || n, "
            "now() - n * n * interval '10 seconds' FROM generate_series(0, 2) n; "
            f"UPDATE {log.sql}.subscription SET paused = true; "
            f"UPDATE {log.sql}.subscription_slot SET paused = true, epoch = 1 WHERE slot < 3; "
            f"INSERT INTO {log.sql}.parked (consumer, key, queue, place, record) "
            "SELECT 'c', to_json('k' || n / 2), ('k' || n / 2)::bytea, ('p' || n)::bytea, '{}' "
            "FROM generate_series(0, 3) n"
        )
        await StreamRetention(log.schema).delete(con, before=3, force=True)
        figures = await monitor.poll()
        found = figures.subscriptions["s"]
        assert (found.members, found.is_paused, found.paused_slots, found.missed) == (2, True, 3, 2)
        assert figures.parked_keys == {"c": 2}
        assert figures.tables["message"].size > 0
        assert set(figures.tables) >= {"subscription_slot", "subscription_member", "parked"}


async def test_a_horizon_that_stands_still_has_an_age(log: Log, real_clock: LoopClock) -> None:
    clock = HandClock()
    async with (
        log.connected() as con,
        log.connected() as other,
        StreamMonitor(log.dsn, schema=log.schema, clock=clock) as monitor,
    ):
        assert (await monitor.poll()).horizon.appender_age is None
        await log.append(con, "a", 0)
        appending = other.transaction()
        await appending.start()
        await log.append(other, "b", 1)
        await log.append(con, "a", 2)
        first = (await monitor.poll()).horizon
        assert (first.distance, first.age) == (2, 0.0)
        assert first.appender_age is not None
        clock.advance(7.0)
        assert (await monitor.poll()).horizon.age == 7.0
        await appending.commit()
        after = (await monitor.poll()).horizon
        assert (after.distance, after.age, after.appender_age) == (0, 0.0, None)


async def test_looks_repeat_and_figures_grow_stale(log: Log, real_clock: LoopClock) -> None:
    """Figures older than three intervals are not shown."""
    clock, polls = HandClock(), Polls()
    monitor = StreamMonitor(
        log.dsn, schema=log.schema, name="orders", every=timedelta(seconds=10), clock=clock,
        observers=[polls],
    )  # fmt: skip
    async with monitor:
        await polls.next()
        assert (monitor.stats().polls, monitor.stats().state) == (1, "open")
        waiting = asyncio.ensure_future(polls.next())
        await asyncio.sleep(0)
        clock.advance(10.0)
        await waiting
        stats: MonitorStats[LogFigures] = await asyncio.to_thread(monitor.stats)
        assert stats.polls == 2
        assert stats.figures is not None
        async with log.connected() as con, con.transaction():
            await con.execute(f"LOCK TABLE {log.sql}.subscription")  # the next poll waits
            clock.advance(31.0)
            assert monitor.stats().figures is None
    assert monitor.stats().state == "closed"
    assert polls.calls == ["open orders", "close orders"]


async def test_the_clock_of_the_loop_is_read_from_any_thread(
    log: Log, real_clock: LoopClock
) -> None:
    async with StreamMonitor(log.dsn, schema=log.schema) as monitor:
        await monitor.poll()
        assert (await asyncio.to_thread(monitor.stats)).figures is not None


async def test_failed_polls_are_counted_and_logged_once_and_the_monitor_goes_on(
    log: Log, real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Also before the first one: opening requires neither a server nor a schema. No password is
    shown.
    """
    clock, polls = HandClock(), Polls()
    schema = f"{log.schema}_later"
    caplog.set_level(logging.INFO, "sluicegate.postgres")
    monitor = StreamMonitor(log.dsn, schema=schema, every=1, clock=clock, observers=[polls])
    async with monitor:
        await polls.next()
        for _ in range(2):
            waiting = asyncio.ensure_future(polls.next())
            await asyncio.sleep(0)
            clock.advance(1.0)
            await waiting
        assert (monitor.stats().failed, monitor.stats().figures) == (3, None)
        with pytest.raises(ConfigError, match=f"sluicegate pg install DSN --schema {schema}"):
            await monitor.poll()
        await install_streams(log.dsn, schema=schema)
        await monitor.poll()
        assert monitor.stats().figures is not None
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "password" not in caplog.text
    refused = StreamMonitor("postgresql://u:hush@127.0.0.1:1/d", schema="s", observers=[polls])
    async with refused:
        await polls.next()
        assert refused.stats().failed == 1
    assert "hush" not in caplog.text + repr(refused)


async def test_a_backlog_that_takes_too_long_costs_only_its_own_figures(
    log: Log, real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    """An invalid selection represents any error of its query."""
    caplog.set_level(logging.INFO)
    async with log.connected() as con, StreamMonitor(log.dsn, schema=log.schema) as monitor:
        await subscribe(log, con, "good", 0)
        await subscribe(log, con, "odd", 0)
        await con.execute(f"UPDATE {log.sql}.subscription SET selection = '?' WHERE name = 'odd'")
        before = monitor.stats().failed
        for _ in range(2):
            found = (await monitor.poll()).subscriptions
            assert found["odd"].backlog is None
            assert found["good"].backlog is not None
        assert monitor.stats().failed >= before + 2
        assert caplog.text.count("the backlog of the subscription 'odd' could not be read") == 1
        readable = StreamSelection().text
        await con.execute(f"UPDATE {log.sql}.subscription SET selection = $1", readable)
        await monitor.poll()
        assert "the backlog of the subscription 'odd' can be read again" in caplog.text


async def test_a_subscription_without_leases_has_no_members_and_no_owners_to_miss(
    log: Log, real_clock: LoopClock
) -> None:
    """Also after an operator has skipped a message and reset the subscription."""
    async with (
        log.connected() as con,
        StreamMonitor(log.dsn, schema=log.schema) as monitor,
        SubscriptionAdmin(log.dsn, schema=log.schema) as admin,
    ):
        await log.append(con, "a-1", 0, 1)
        await consumed(log, locks=PostgresAdvisoryLocks(log.dsn, schema=log.schema))
        await log.append(con, "a-1", 2, 3)
        await admin.skip("s", 4)
        await admin.reset("s", "beginning")
        found = (await monitor.poll()).subscriptions["s"]
        assert found.members is None
        assert found.backlog == Backlog(3, ANY, 1, None)
        await consumed(log)
        found = (await monitor.poll()).subscriptions["s"]
        assert found.members == 0
        assert found.backlog == Backlog(0, 0.0, 0, 0)


async def test_a_role_with_the_right_to_subscribe_can_watch(
    log: Log, real_clock: LoopClock
) -> None:
    async with role(log) as watcher:
        await install_streams(log.dsn, schema=log.schema, subscribe=watcher.name)
        async with StreamMonitor(watcher.dsn, schema=log.schema) as monitor:
            figures = await monitor.poll()
        assert figures.tables["subscription_slot"].size > 0


@pytest.mark.parametrize(
    ("option", "value"),
    [("every", 0), ("count_to", 0), ("lease", -1), ("name", ""), ("observers", ["x"])],
)
def test_a_bad_argument_is_named(option: str, value: object) -> None:
    options: Any = {option: value}
    with pytest.raises(ConfigError, match=option):
        StreamMonitor("postgresql://h/d", **options)
