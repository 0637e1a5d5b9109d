"""`SqlSink` with a frozen server, and in processes that are killed.

White box: a decorator that watches what the sink answers.

Proven here: batcher/B38. `SLUICEGATE_KILLS=100 pytest -m soak tests/sql/test_sql_kills.py`
kills 100 processes.

White box: a decorator that notes each failure inside `Retry`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.sql.conftest import table_of

from sluicegate import (
    Backoff,
    Batcher,
    Limits,
    Outcome,
    Retry,
    Timeout,
    WriteResult,
    gather,
    send,
    stack,
)
from sluicegate._core.decorator import WrappingSink

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.sql.mariadb import MariaDbServer
    from tests.sql.sql_help import SqlTable

    from sluicegate import Batch, Sink

pytestmark = pytest.mark.usefixtures("real_clock")

KILLS = int(os.environ.get("SLUICEGATE_KILLS", "40"))
CHILD = Path(__file__).with_name("kills_child.py")


class Failures(WrappingSink[Any]):
    """Signals the first write with errors."""

    def __init__(self, inner: Sink[Any]) -> None:
        super().__init__(inner)
        self.seen = asyncio.Event()

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        errors = await send(self.inner, batch)
        if not errors:
            return None
        self.seen.set()
        return WriteResult.failed(batch, errors)


@pytest.mark.parametrize("driver", ["pymysql"])
@pytest.mark.parametrize("has_key", [True, False])
async def test_a_frozen_server_loses_no_row(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    mariadb: MariaDbServer,
    driver: str,
    *,
    has_key: bool,
) -> None:
    """A write ends at its timeout. With a key each row is found again and stored once; without a
    key it is unknown and not written again.
    """
    table = table_of(request, driver, tmp_path)
    table.make(f"id INT NOT NULL {'UNIQUE' * has_key}, word VARCHAR(20) NOT NULL")
    failures = Failures(stack(table.sink(pool_size=4, close_timeout=0.05), Timeout(2.0)))
    retry = [Retry(attempts=50, give_up_after=60.0, backoff=Backoff(base=0.02, jitter="none"))]
    limits = Limits(max_items=50, max_delay=0.01, workers=4)
    async with Batcher(stack(failures, *(retry if has_key else [])), limits=limits) as batcher:
        receipts = [await batcher.submit((number, "w")) for number in range(1000)]
        await gather(receipts[:200])
        await asyncio.to_thread(mariadb.pause)
        try:
            receipts += [await batcher.submit((number, "w")) for number in range(1000, 1500)]
            await asyncio.wait_for(failures.seen.wait(), 30)
        finally:
            mariadb.resume()
        receipts += [await batcher.submit((number, "w")) for number in range(1500, 2000)]
        outcomes = [await receipt.settled() for receipt in receipts]
    found = Counter(number for (number,) in await table.looked("id"))
    assert {*outcomes} <= {Outcome.DELIVERED, Outcome.DUPLICATE if has_key else Outcome.UNKNOWN}
    assert outcomes.count(Outcome.DELIVERED) >= 200
    for number, outcome in enumerate(outcomes):
        assert found[number] == 1 or (found[number] == 0 and outcome is Outcome.UNKNOWN), number


def killed(table: SqlTable, first: int, size: int, lines: int) -> int:
    """Kill a process after this many reported lines, at any step; return the number of rows that it
    reported as delivered. With large batches it reports each statement.
    """
    given = {"url": table.url, "first": first, "size": size, "is_telling": size > 10}
    with subprocess.Popen(
        [sys.executable, str(CHILD), json.dumps(given)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        told += process.stdout.read().split("\n")[:-1]
    return max([int(line) for line in told if line.strip()], default=first)


def kill_many(table: SqlTable, size: int, lines: Iterable[int]) -> None:
    """Check that reported rows are stored, in whole batches, and that nothing is duplicated."""
    table.make("id INT NOT NULL UNIQUE, word VARCHAR(20) NOT NULL")
    delivered = 0
    for each in lines:
        delivered = killed(table, delivered, size, each)
        table.run(WAIT[table.name])
        found = [number for (number,) in table.rows("id", order="id")]
        assert found == list(range(len(found)))
        assert len(found) in {delivered, delivered + size}


WAIT = {
    "mysql": "ALTER TABLE words COMMENT = ''",
    "sqlite": "BEGIN IMMEDIATE",
}
"""A query that waits for the end of a killed process's statement."""


@pytest.mark.long
@pytest.mark.parametrize("driver", ["pymysql"])
@pytest.mark.parametrize(("size", "lines"), [(10, 50), (40_000, 17)])
def test_a_process_that_is_killed_has_lost_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, driver: str, size: int, lines: int
) -> None:
    """batcher/B38: with one statement per batch, and in a transaction of several, after its
    first.
    """
    kill_many(table_of(request, driver, tmp_path), size, [lines])


@pytest.mark.soak
@pytest.mark.timeout(900)  # some million rows
@pytest.mark.parametrize("driver", ["sqlite", "pymysql"])
@pytest.mark.parametrize("size", [10, 40_000])
def test_many_processes_that_are_killed_have_lost_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, driver: str, size: int
) -> None:
    """batcher/B38: `SLUICEGATE_KILLS` processes."""
    at_random = random.Random(2)
    lines = [at_random.randrange(1, 40) for _ in range(KILLS)]
    kill_many(table_of(request, driver, tmp_path), size, lines)
