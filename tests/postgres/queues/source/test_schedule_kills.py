"""Schedules whose consumers are killed at random moments, while the server's clock runs and steps.

Checked by the ticks of the queue's jobs. `SLUICEGATE_KILLS=1000 pytest -m soak
tests/postgres/queues/source/test_schedule_kills.py` kills so many times.

White box: the function that schedules take the time from.
"""

from __future__ import annotations

import os
import random
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from tests.postgres.queues.source.kills_help import queue, stop

from sluicegate.postgres import QueueAdmin

if TYPE_CHECKING:
    from tests.postgres.queues.source.kills_help import Queue
    from tests.postgres.streams.log_help import Log

pytestmark = pytest.mark.usefixtures("real_clock")
KILLS = int(os.environ.get("SLUICEGATE_KILLS", "1000"))
PROCESSES = 3
EVERY = 10
LEASE = 5.0
"""Seconds; a busy machine answers within half of it."""
HOUR = 3600
CLOCK = """
CREATE TABLE {schema}.step AS SELECT 0 AS seconds;
CREATE OR REPLACE FUNCTION {schema}.schedule_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
  'SELECT clock_timestamp() + make_interval(secs => seconds) FROM {schema}.step';
"""
TICKS = """
SELECT extract(epoch FROM tick::timestamptz)::bigint FROM (
  SELECT headers ->> 'scheduled_for' FROM {schema}.job
  UNION ALL SELECT headers ->> 'scheduled_for' FROM {schema}.finished_job) AS j (tick)
ORDER BY 1
"""
"""Of jobs, handled or not; the place of one that is tried again may change."""
NEXT = "SELECT {at} - extract(epoch FROM next_at)::bigint FROM {{schema}}.schedule"
"""How far the next tick is before a time."""


async def step(made: Queue, seconds: int) -> None:
    await made.con.execute(f"UPDATE {made.log.sql}.step SET seconds = seconds + $1", seconds)


async def kill_at_random(made: Queue, kills: int, chance: random.Random) -> None:
    """Move the clock on by some seconds, at times by an hour back and forth, and kill a process once
    a random one of the due ticks has fired.
    """
    members = [await made.member(lease=LEASE) for _ in range(PROCESSES)]
    for member in members:
        await member.ready()

    async def kill() -> None:
        place = chance.randrange(PROCESSES)
        members[place].process.kill()
        members[place] = await made.member(lease=LEASE)

    for number in range(kills):
        seconds = chance.randrange(EVERY, 30 * EVERY)
        if number % 10 == 5:
            await step(made, -HOUR)
            await kill()  # nothing is due
            await step(made, HOUR)
            seconds += HOUR * (number % 20 == 5)
        due = await made.ask("SELECT extract(epoch FROM next_at)::bigint FROM {schema}.schedule")
        await step(made, seconds)
        await made.until(NEXT.format(at=due + chance.randrange(seconds)))
        await kill()
    now = await made.ask("SELECT extract(epoch FROM {schema}.schedule_now())::bigint")
    await made.until(NEXT.format(at=now))
    await made.con.execute(f"UPDATE {made.log.sql}.schedule SET paused = true")
    await stop(*members)


async def assert_each_tick_once(log: Log, kills: int, chance: random.Random) -> None:
    async with (
        queue(log, keep_done=timedelta(days=1)) as made,
        QueueAdmin(log.dsn, schema=log.schema) as admin,
    ):
        await made.con.execute(CLOCK.format(schema=log.sql))
        schedules = await admin.schedules("q")
        first = await schedules.put("often", every=EVERY, catch_up="all")
        assert first.next_at is not None
        await kill_at_random(made, kills, chance)
        last = await schedules.show("often")
        assert last is not None
        assert last.last_at is not None
        found = [row[0] for row in await made.con.fetch(TICKS.format(schema=log.sql))]
        begin, end = int(first.next_at.timestamp()), int(last.last_at.timestamp())
        assert found == [*range(begin, end + 1, EVERY)]
        assert len(found) > kills


async def test_each_tick_fires_once_although_processes_are_killed(log: Log) -> None:
    await assert_each_tick_once(log, 6, random.Random(0))


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_each_tick_fires_once_in_many_kills_and_steps_of_the_clock(log: Log) -> None:
    await assert_each_tick_once(log, KILLS, random.Random(1))
