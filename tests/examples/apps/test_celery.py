"""The Celery sample: a real worker with two processes that is stopped and killed."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from typing import TYPE_CHECKING

import pytest
from tests.examples.apps.service import APPS, TABLE, Service, query, service

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from sluicegate.testing import EmbeddedPostgres

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
"""
MANY = """
from broker import store, store_many

for number in range(300):
    store.delay(number, "login")
store_many.delay([(number, "logout") for number in range(300, 1300)])
store_many.delay([(2000, "good"), (2001, "bad")])
"""
KILLED = """
import os, pathlib, signal
from celery_app import batcher

@app.task(name="killed_once")
def killed_once(number):
    has_been = pathlib.Path("killed").exists()
    pathlib.Path("killed").touch()
    batcher.add((number, "login"))
    if not has_been:
        os.kill(os.getpid(), signal.SIGKILL)
    store(number, "login")
"""
TASKS = 302
WORKER = (sys.executable, "-m", "celery", "-A", "broker", "worker", "--concurrency", "2")
OPTIONS = ("--loglevel", "INFO", "--without-gossip", "--without-mingle")
ENDED = r"Task celery_app\.\w+\[(\S+)\] (?:succeeded|raised)"


class Installation:
    """A broker in a folder, and workers of the sample."""

    def __init__(self, folder: Path, dsn: str, more: str = "") -> None:
        self.folder = folder
        paths = [os.environ.get("PYTHONPATH", ""), str(APPS)]
        self.env = {"DATABASE_URL": dsn, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        (folder / "queue").mkdir()
        (folder / "broker.py").write_text(BROKER + more)

    async def send(self, program: str) -> None:
        command = (sys.executable, "-c", program)
        async with service(*command, env=self.env, folder=self.folder) as sender:
            assert await sender.process.wait() == 0

    def worker(self) -> AbstractAsyncContextManager[Service]:
        return service(*WORKER, *OPTIONS, env=self.env, folder=self.folder)


async def ended(worker: Service, tasks: set[str], count: int) -> None:
    """Read the log until this many tasks have ended."""
    while len(tasks) < count:
        tasks.add((await worker.line(ENDED))[1])


async def stopped_and_started(folder: Path, dsn: str) -> tuple[list[int], list[str]]:
    await query(dsn, "DROP TABLE IF EXISTS events", TABLE)
    installation = Installation(folder, dsn)
    await installation.send(MANY)
    async with installation.worker() as first:
        tasks: set[str] = set()
        await ended(first, tasks, 50)
        assert await first.terminate() == 0
        tasks |= {found[1] for line in first.lines if (found := re.search(ENDED, line))}
        assert len(tasks) < TASKS
        assert len(first.reports()) == 2  # worker_process_shutdown runs in each process
    async with installation.worker() as second:
        await ended(second, tasks, TASKS)
    return await query(dsn, "SELECT id FROM events ORDER BY id"), first.lines + second.lines


@pytest.mark.soak  # with a folder as the broker, a worker once took minutes instead of seconds
def test_every_task_ends_with_its_row_in_the_table(
    tmp_path: Path, embedded_postgres: EmbeddedPostgres
) -> None:
    """Including a warm shutdown during the run; a row refused by the table fails its task."""
    stored, lines = asyncio.run(stopped_and_started(tmp_path, embedded_postgres.dsn))
    assert stored == [*range(1300), 2000]
    assert any("raised unexpected: Refused((2001, 'bad'))" in line for line in lines)


async def killed(folder: Path, dsn: str) -> tuple[list[int], list[str]]:
    await query(dsn, "DROP TABLE IF EXISTS events", TABLE)
    installation = Installation(folder, dsn, KILLED)
    await installation.send("from broker import killed_once; killed_once.delay(1)")
    async with installation.worker() as worker:
        await worker.line(r"killed_once\[\S+\] succeeded")
    return await query(dsn, "SELECT id FROM events"), worker.lines


@pytest.mark.soak  # Celery takes 10 s to give up a killed process
def test_the_task_of_a_killed_process_runs_again(
    tmp_path: Path, embedded_postgres: EmbeddedPostgres
) -> None:
    """The contents of the ledger were lost with the process, and the task was not acknowledged."""
    stored, lines = asyncio.run(killed(tmp_path, embedded_postgres.dsn))
    assert stored == [1]
    assert any("WorkerLostError" in line for line in lines)
