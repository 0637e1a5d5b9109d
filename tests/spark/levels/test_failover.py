"""A standby that takes over between two buckets of a job and lacks the first. White box: a
partition's task in this process.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
import asyncpg
import pyarrow as pa
from tests.spark.sql import query

from sluicegate import UnknownOutcomeError
from sluicegate.postgres import PostgresSink
from sluicegate.spark import SparkWriteReport
from sluicegate.spark.description import description
from sluicegate.spark.keys import BUCKET
from sluicegate.spark.levels import Ran, Units, write_units
from sluicegate.spark.task.partition import Partition
from sluicegate.spark.task.results import read_histories, read_report
from sluicegate.spark.task.task import Cuts
from sluicegate.testing import embedded_postgres
from sluicegate.testing.servers.require import there_or_skip

from .conftest import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluicegate.testing import EmbeddedPostgres

UNITS = Units(application="job", version=0, buckets=2, key=("key",), in_transactions=True)
CUTS = Cuts(chunk_rows=1_000, chunk_bytes=1 << 20, window=1, key=("key",))


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """A test's own server, which is promoted."""
    with there_or_skip("postgres", embedded_postgres({"fsync": "off"})) as server:
        query(server.dsn, TABLES)
        yield server


def bucket(number: int) -> Any:
    ids = pa.array(range(number * 100, number * 100 + 100), pa.int64())
    return pa.record_batch(
        {
            "id": ids,
            "key": pa.array([number] * 100, pa.int64()),
            BUCKET: pa.array([number] * 100, pa.int32()),
        }
    )


def take_over(server: EmbeddedPostgres) -> None:
    """Replace the server by a promoted standby that lacks the last commits, as an asynchronous one
    may.
    """
    server.stop()
    (server._data / "standby.signal").touch()
    server.start()

    async def promoted() -> None:
        con = await asyncpg.connect(server.dsn)
        assert await con.fetchval("SELECT pg_promote()")
        await con.execute("DELETE FROM events; DELETE FROM sluicegate_ledger")
        await con.close()

    asyncio.run(promoted())


def test_a_job_over_a_failover_runs_again_and_every_row_is_there(
    server: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """The earlier buckets are written again, the others are skipped. Each was committed and
    reported as such.
    """
    failovers = [server]
    writing = Partition(
        description(PostgresSink(server.dsn, table="events", columns=("id", "key"))),
        CUTS,
        "job",
        keep=0,
        stop_at=0,
        units=UNITS,
    )

    def run() -> Ran:
        lines = writing.run([bucket(0)])
        while failovers:
            take_over(failovers.pop())
        lines += writing.run([bucket(1)])
        return Ran(read_report(lines), [], 0, read_histories(lines))

    with caplog.at_level(logging.WARNING, "sluicegate.spark"):
        report = write_units(run)
    assert (report.delivered, report.duplicate, report.skipped_units) == (100, 100, 1)
    assert query(server.dsn, "SELECT id, key FROM events ORDER BY id") == [
        (number, number // 100) for number in range(200)
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "the job runs again: another server took over while units were committed (00000001, "
        "00000002), and may lack those of the earlier server"
    ]


def test_failovers_in_each_of_three_runs_are_an_error() -> None:
    runs: list[Any] = []

    def run() -> Ran:
        runs.append(None)
        return Ran(SparkWriteReport(()), [], 0, frozenset({"1", "2"}))

    with pytest.raises(UnknownOutcomeError, match="another server took over"):
        write_units(run)
    assert len(runs) == 3
