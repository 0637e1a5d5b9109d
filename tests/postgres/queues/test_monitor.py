"""The figures of a monitor are those of the queues, and its failures affect nothing else.

White box: the statement of the figures, replaced by one that fails.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.queues.jobs_help import claim, insert
from tests.postgres.queues.operated_help import end, operated
from tests.postgres.streams.log_help import Log, role
from tests.postgres.streams.test_monitor import HandClock

from sluicegate import ClosedError, ConfigError
from sluicegate.postgres import QueueMonitor, QueueObserver, install_streams

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("real_clock")


class Polls(QueueObserver):
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


async def test_figures_are_those_of_each_queue(log: Log) -> None:
    """Q20: counts up to a limit, pauses, members, slots without an owner, and tables."""
    async with operated(log) as (con, admin), QueueMonitor(log.dsn, schema=log.schema) as monitor:
        await admin.create("mails", poison="skip", max_attempts=1)
        await admin.create("sticky", sticky=True)
        await admin.pause("sticky")
        await insert(con, log, "mails", *((f"k{n}", n) for n in range(3)))
        (row, *_) = await claim(con, log, "mails")
        assert await end(con, log, "mails", row, "fail") == "dead"
        await con.fetch(f"SELECT {log.sql}.seen_consumer('sticky', 'g', 'one', 60)")
        await (await admin.routing("sticky", "g")).move(0, 9, "one")
        figures = await monitor.poll()
        mails, sticky = figures.queues["mails"], figures.queues["sticky"]
        assert mails is not None
        assert (mails.jobs, mails.leased, mails.dead, mails.members) == (2, 2, 1, 0)
        assert sticky is not None
        assert (sticky.members, sticky.unowned_slots) == (1, 65_526)
        assert figures.paused == {"mails": False, "sticky": True}
        assert figures.sizes["job"] > 0
        assert set(figures.dead_rows) >= {"job", "lane", "bell", "finished_job"}
    async with QueueMonitor(log.dsn, schema=log.schema, count_to=1) as monitor:
        found = (await monitor.poll()).queues["mails"]
        assert found is not None
        assert found.jobs == 1


async def test_a_queue_that_takes_too_long_costs_only_its_own_figures(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A division by zero for one queue represents any error of its query."""
    caplog.set_level(logging.INFO)
    sql = "sluicegate.postgres.queues.queries.STATS"
    async with operated(log) as (_, admin), QueueMonitor(log.dsn, schema=log.schema) as monitor:
        await admin.create("good")
        await admin.create("odd")
        from sluicegate.postgres.queues.queries import STATS

        failing = STATS.replace("SELECT q.paused,", "SELECT 1 / (q.name <> 'odd')::int = 0,")
        monkeypatch.setattr(sql, failing)
        before = monitor.stats().failed
        for _ in range(2):
            figures = await monitor.poll()
            assert figures.queues["odd"] is None
            assert figures.queues["good"] is not None
            assert figures.paused == {"good": False, "odd": False}
        assert monitor.stats().failed >= before + 2
        assert caplog.text.count("the queue 'odd' could not be read") == 1
        monkeypatch.setattr(sql, STATS)
        await monitor.poll()
        assert "the queue 'odd' can be read again" in caplog.text


async def test_looks_repeat_and_failed_ones_are_counted(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """Opening requires neither a server nor a schema; no password is shown."""
    clock, polls = HandClock(), Polls()
    schema = f"{log.schema}_later"
    caplog.set_level(logging.INFO, "sluicegate.postgres")
    monitor = QueueMonitor(log.dsn, schema=schema, every=1, clock=clock, observers=[polls])
    async with monitor:
        await polls.next()
        assert (monitor.stats().failed, monitor.stats().figures) == (1, None)
        await install_streams(log.dsn, schema=schema)
        waiting = asyncio.ensure_future(polls.next())
        await asyncio.sleep(0)
        clock.advance(1.0)
        await waiting
        assert monitor.stats().polls == 1
        assert monitor.stats().figures is not None
        clock.time += 3.5
        assert monitor.stats().figures is None
    assert polls.calls == [f"open {schema}", f"close {schema}"]
    assert monitor.stats().state == "closed"
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "a poll of the queues failed" in caplog.text
    assert "password" not in caplog.text


async def test_a_role_with_the_right_to_work_can_watch(log: Log) -> None:
    async with operated(log) as (_, admin), role(log) as watcher:
        await admin.create("mails")
        await install_streams(log.dsn, schema=log.schema, work=watcher.name)
        async with QueueMonitor(watcher.dsn, schema=log.schema) as monitor:
            assert (await monitor.poll()).queues["mails"] is not None


@pytest.mark.parametrize(
    ("option", "value"), [("every", 0), ("count_to", 0), ("name", ""), ("observers", ["x"])]
)
def test_a_bad_argument_is_named(option: str, value: object) -> None:
    options: Any = {option: value}
    with pytest.raises(ConfigError, match=option):
        QueueMonitor("postgresql://h/d", **options)


async def test_a_monitor_that_is_not_open_says_so() -> None:
    monitor = QueueMonitor("postgresql://u:hush@h/d", schema="s")
    with pytest.raises(ClosedError, match=r"QueueMonitor\(h/d, schema='s'\) is not open"):
        await monitor.poll()
