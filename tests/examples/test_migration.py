"""Unbatched code becomes batched in ten steps, and the same tests pass after each of them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.examples.example import EXAMPLES, ROOT, load

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.testing import EmbeddedPostgres

STEPS = sorted(path.stem for path in (EXAMPLES / "migration").glob("step_*.py"))
COUNT = 100
TABLES = (EXAMPLES / "migration" / "tables.sql").read_text()
Requests = AsyncIterator[tuple[int, str | None]]


def number_of(step: str) -> int:
    return int(step.split("_")[1])


class Program:
    """A step, with empty tables."""

    def __init__(self, step: str, dsn: str) -> None:
        self.number = number_of(step)
        self.dsn = dsn
        self.module = load(f"migration/{step}")
        asyncio.run(self._execute("DROP TABLE IF EXISTS audit_events, audit_refused;" + TABLES))

    def run(self, requests: Requests) -> None:
        self.module.main(self.dsn, requests)

    async def _execute(self, sql: str) -> list[Any]:
        connection = await asyncpg.connect(self.dsn)
        try:
            return (
                [tuple(row) for row in await connection.fetch(sql)]
                if sql.startswith("SELECT")
                else [await connection.execute(sql)]
            )
        finally:
            await connection.close()

    def query(self, sql: str) -> list[Any]:
        return asyncio.run(self._execute(sql))

    def stored(self) -> list[int]:
        return [number for (number,) in self.query("SELECT id FROM audit_events ORDER BY id")]


@pytest.fixture(params=STEPS)
def program(request: pytest.FixtureRequest, embedded_postgres: EmbeddedPostgres) -> Program:
    return Program(request.param, embedded_postgres.dsn)


async def events(
    handled: list[int], at: dict[int, Callable[[], None]] | None = None, refused: int | None = None
) -> Requests:
    """Events 0 to COUNT; each is in `handled` once the program requests the next one. `at` a
    number, an action happens.
    """
    for number in range(COUNT):
        if at and number in at:
            at[number]()
        yield number, None if number == refused else "login"
        handled.append(number)


def test_the_steps_are_ten() -> None:
    """batcher/B57: ten migration steps, with a file for each."""
    assert [number_of(step) for step in STEPS] == list(range(1, 11))


def test_every_event_is_recorded_once(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    """batcher/B57: also if the same events are repeated, batcher/B38. Until the seventh step each
    event is a commit.
    """
    for _ in range(2):
        program.run(events([]))
        assert program.stored() == list(range(COUNT))
    assert "not recorded" not in caplog.text
    assert program.query("SELECT event FROM audit_refused") == []
    ((commits,),) = program.query("SELECT count(DISTINCT xmin::text) FROM audit_events")
    assert commits == COUNT if program.number < 7 else commits < COUNT / 10


def test_an_event_that_the_table_refuses_fails_alone(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    """batcher/B57: some output names it."""
    program.run(events([], refused=COUNT // 2))
    assert program.stored() == [number for number in range(COUNT) if number != COUNT // 2]
    told = caplog.text + str(program.query("SELECT event FROM audit_refused"))
    assert re.search(rf"\b{COUNT // 2}\b", told)


def test_what_was_handled_before_a_crash_is_recorded(program: Program) -> None:
    """batcher/B57: the surrounding code fails during the run."""
    handled: list[int] = []

    def crash() -> None:
        raise RuntimeError("no more requests")

    with pytest.raises(RuntimeError, match="no more requests"):
        program.run(events(handled, {COUNT // 2: crash}))
    assert handled == list(range(COUNT // 2))
    assert program.stored() == handled


@pytest.mark.parametrize("step", [step for step in STEPS if number_of(step) >= 6])
def test_what_was_handled_before_a_signal_is_recorded(
    step: str, embedded_postgres: EmbeddedPostgres
) -> None:
    """batcher/B57: from the sixth step on, a SIGTERM during the run loses no handled event."""
    program = Program(step, embedded_postgres.dsn)
    handled: list[int] = []

    async def until_the_signal() -> Requests:
        async for event in events(
            handled, {COUNT // 2: lambda: os.kill(os.getpid(), signal.SIGTERM)}
        ):
            if event[0] > COUNT // 2:
                await asyncio.Event().wait()  # the next request never comes
            yield event

    program.run(until_the_signal())
    assert len(handled) >= COUNT // 2
    assert program.stored() == handled


@pytest.mark.parametrize("step", [step for step in STEPS if number_of(step) >= 8])
def test_what_it_does_is_measured(step: str, embedded_postgres: EmbeddedPostgres) -> None:
    """batcher/B57, batcher/B32: the four metrics, from the eighth step on."""
    program = Program(step, embedded_postgres.dsn)
    program.run(events([]))
    measured: Callable[..., float | None] = program.module.registry.get_sample_value
    flushes = sum(
        measured("batcher_flush_total", {"name": "audit", "reason": reason}) or 0
        for reason in ("size", "time", "shutdown")
    )
    assert flushes > 0
    assert measured("batcher_batch_size_items_count", {"name": "audit"}) == flushes
    assert measured("batcher_batch_size_items_sum", {"name": "audit"}) == COUNT
    assert (
        measured("batcher_flush_duration_seconds_count", {"name": "audit", "result": "ok"})
        == flushes
    )
    assert measured("batcher_enqueued_total", {"name": "audit"}) == COUNT


@pytest.mark.long
def test_the_tenth_step_has_tests_that_pass() -> None:
    """batcher/B57: the user's tests, run as a user runs them."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        str(EXAMPLES / "migration" / "test_step_10.py"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "3 passed" in done.stdout, done.stdout + done.stderr
