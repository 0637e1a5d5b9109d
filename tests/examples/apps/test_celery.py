"""The Celery sample: a real worker with two processes, stopped in the middle, and one of its
processes killed.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from typing import TYPE_CHECKING

import psutil
from tests.examples.apps.service import APPS, TABLE, Service, query, service

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.testing import EmbeddedPostgres

BROKER = """
from celery_app import app, store, store_many

app.conf.update(
    broker_url="filesystem://",
    broker_transport_options={
        "data_folder_in": "queue",
        "data_folder_out": "queue",
        "control_folder": "control",
        "polling_interval": 0.01,
    },
)
if __name__ == "__main__":
    for number in range(300):
        store.delay(number, "login")
    store_many.delay([(number, "logout") for number in range(300, 1300)])
    store_many.delay([(2000, "good"), (2001, "bad")])
    store.apply_async((2002, "slow"), task_id="slow")
"""
SLOW = (
    "CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END'",
    "CREATE TRIGGER slow BEFORE INSERT ON events FOR EACH ROW "
    "WHEN (NEW.action = 'slow') EXECUTE FUNCTION slow()",
)
TASKS = 303
OPTIONS = ("--concurrency", "2", "--loglevel", "INFO", "--without-gossip", "--without-mingle")
ENDED = re.compile(r"Task celery_app\.\w+\[(\S+)\] (?:succeeded|raised)")


async def ended(worker: Service, tasks: set[str], count: int) -> None:
    """Read the log until so many tasks have ended."""
    while len(tasks) < count:
        tasks.add((await worker.line(ENDED.pattern))[1])


def ended_in(lines: list[str]) -> set[str]:
    return {found[1] for line in lines if (found := ENDED.search(line))}


async def scenario(folder: Path, dsn: str) -> tuple[list[int], Service, Service]:
    await query(dsn, "DROP TABLE IF EXISTS events", TABLE, *SLOW)
    (folder / "queue").mkdir()
    (folder / "broker.py").write_text(BROKER)
    env = {"DATABASE_URL": dsn, "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{APPS}"}
    worker = (sys.executable, "-m", "celery", "-A", "broker", "worker", *OPTIONS)
    async with service(sys.executable, "broker.py", env=env, folder=folder) as sender:
        assert await sender.process.wait() == 0
    async with service(*worker, env=env, folder=folder) as first:
        tasks: set[str] = set()
        await ended(first, tasks, 100)
        assert await first.terminate() == 0
        tasks |= ended_in(first.lines)
        assert len(tasks) < TASKS
    async with service(*worker, env=env, folder=folder) as second:
        await second.line(r"store\[slow\] received")
        tasks |= ended_in(second.lines)
        for process in psutil.Process(second.process.pid).children():
            process.kill()  # one of them has the task, which takes a while
        await ended(second, tasks, TASKS)
    return await query(dsn, "SELECT id FROM events ORDER BY id"), first, second


def test_every_task_ends_with_its_row_in_the_table(
    tmp_path: Path, embedded_postgres: EmbeddedPostgres
) -> None:
    stored, first, second = asyncio.run(scenario(tmp_path, embedded_postgres.dsn))
    assert stored == [*range(1300), 2000, 2002]
    assert any("exited with 'signal 9 (SIGKILL)'" in line for line in second.lines)
    assert sum("Refused((2001, 'bad'))" in line for line in first.lines + second.lines) == 1
