"""`delivery="atomic"` on a real Spark and a real PostgreSQL. White box: the stages, and runs of a
job without Spark.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

pytest.importorskip("pyspark")
from tests.spark.sql import query

from sluicegate import Batch, Retry, RowBatch, Sink, Timeout, WriteResult, send, stack
from sluicegate._core.decorator import WrappingSink
from sluicegate._core.staging import Epoch, staged
from sluicegate.errors import StagesLost
from sluicegate.postgres import PostgresSink
from sluicegate.postgres.sink.stages import TableStages
from sluicegate.sinks import Unit
from sluicegate.spark import DeadLettersError, SparkWriteReport, write_dataframe
from sluicegate.spark.content import Content
from sluicegate.spark.levels import Ran, write_atomically
from sluicegate.spark.report import UnitReport
from sluicegate.testing import embedded_postgres
from sluicegate.testing.servers.require import there_or_skip

from .conftest import INVERSIONS, TABLES, WHOLE, rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sluicegate._core.staging import Stage
    from sluicegate._core.transaction import Committed
    from sluicegate.sinks import Counts

STAGES = (
    "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'sluicegate\\_%' "
    "AND relname <> 'sluicegate_ledger'"
)
ATOMIC: dict[str, Any] = {
    "delivery": "atomic",
    "app_id": "job",
    "version": 1,
    "key": "key",
    "order_by": "id",
    "buckets": 3,
}


def is_first(note: str) -> bool:
    """Whether the note has not been taken yet; takes it."""
    try:
        Path(note).unlink()
    except FileNotFoundError:
        return False
    return True


class KilledOnce(WrappingSink[Any]):
    """Kills its process when half of a batch is written, but only the first time."""

    def __init__(self, inner: Sink[Any], note: str) -> None:
        super().__init__(inner)
        self.note = note

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        if is_first(self.note):
            await send(self.inner, batch.pick(range(len(batch) // 2)))
            os.kill(os.getpid(), signal.SIGKILL)
        errors = await send(self.inner, batch)
        return WriteResult.failed(batch, errors) if errors else None


def sink(dsn: str, note: Path | None = None) -> Any:
    destination: Any = PostgresSink(dsn, table="events", columns=("id", "key"))
    return stack(
        destination if note is None else KilledOnce(destination, str(note)), Timeout(30.0), Retry()
    )


@pytest.mark.long
@pytest.mark.parametrize("delivery", ["atomic", "bucket"])
def test_a_worker_killed_in_the_middle_changes_nothing(
    spark: Any, dsn: str, tmp_path: Path, delivery: str
) -> None:
    """P-T4, P-T8, P-T9: its half of a batch is in no table; the next attempt, or a repeated write,
    adds exactly what is missing.
    """
    note = tmp_path / "kill"
    note.touch()
    options: dict[str, Any] = ATOMIC | {"delivery": delivery, "chunk_rows": 500}
    report = write_dataframe(rows(spark, 6_000), sink(dsn, note), **options)
    assert not note.exists()
    assert (report.rows, report.delivered, report.skipped_units) == (6_000, 6_000, 0)
    assert sorted(unit.attempt for unit in report.units) == [0, 0, 1]
    again = write_dataframe(rows(spark, 6_000, partitions=2), sink(dsn), **options)
    assert (again.rows, again.delivered, again.duplicate) == (6_000, 0, 6_000)
    assert again.skipped_units == len(again.units)
    assert query(dsn, WHOLE) == [(6_000, 6_000)]
    assert query(dsn, INVERSIONS) == [(0,)]
    assert query(dsn, STAGES) == [(0,)]


@pytest.mark.long
def test_dead_rows_over_the_limit_leave_nothing_and_an_overwrite_leaves_the_old(
    spark: Any, dsn: str
) -> None:
    """P-T10, P-T14: no row of any task, and no stage."""
    query(
        dsn,
        "INSERT INTO events (id, key) VALUES (-1, -1); ALTER TABLE events ADD CONSTRAINT "
        "range CHECK (id NOT IN (5, 7))",
    )
    with pytest.raises(DeadLettersError, match="2 of 1000 rows failed for good"):
        write_dataframe(
            rows(spark, 1_000), sink(dsn), mode="overwrite", max_dead_letters=1, **ATOMIC
        )
    assert query(dsn, "SELECT id FROM events") == [(-1,)]
    assert query(dsn, STAGES) == [(0,)]
    report = write_dataframe(
        rows(spark, 1_000), sink(dsn), mode="overwrite", max_dead_letters=2, **ATOMIC
    )
    assert (report.rows, report.delivered, report.failed) == (1_000, 998, 2)
    assert query(dsn, WHOLE) == [(998, 998)]
    again = write_dataframe(rows(spark, 1_000, partitions=1), sink(dsn), mode="overwrite", **ATOMIC)
    assert (again.rows, again.duplicate, again.failed, again.skipped_units) == (1_000, 998, 2, 1)
    assert query(dsn, WHOLE) == [(998, 998)]
    assert query(dsn, STAGES) == [(0,)]


class CrashedOnce(PostgresSink):
    """Kills one of the server's processes between the end of the tasks and the publication, but
    only the first time.
    """

    def __init__(self, dsn: str, note: str) -> None:
        super().__init__(dsn, table="events", columns=("id", "key"), stages="unlogged")
        self.dsn = dsn
        self.note = note

    def _stages(self) -> CrashedOnceStages:
        stages = CrashedOnceStages(self._opened())
        stages.dsn, stages.note = self.dsn, self.note
        return stages


class CrashedOnceStages(TableStages):
    """The stages of a `CrashedOnce`."""

    dsn: str
    note: str

    async def publish(
        self, epoch: Epoch, stages: Sequence[Stage], counts: Counts, mark: str
    ) -> Committed | None:
        if is_first(self.note):
            killed, other = [await asyncpg.connect(self.dsn) for _ in range(2)]
            crashed = asyncio.Event()
            other.add_termination_listener(lambda _: crashed.set())
            os.kill(await killed.fetchval("SELECT pg_backend_pid()"), signal.SIGKILL)
            await crashed.wait()  # the server ends all processes when it detects the loss of one
            killed.terminate()
        return await super().publish(epoch, stages, counts, mark)


@pytest.fixture
def crashing() -> Iterator[str]:
    """A server for a single test, which crashes it, with an empty table `events`."""
    with there_or_skip("postgres", embedded_postgres({"fsync": "off"})) as server:
        query(server.dsn, TABLES)
        yield server.dsn


@pytest.mark.long
def test_a_server_that_crashes_before_the_publication_makes_the_job_run_again(
    spark: Any, crashing: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P-T4: all stages are empty then; at the end every row is published once."""
    note = tmp_path / "crash"
    note.touch()
    with caplog.at_level(logging.WARNING, "sluicegate.spark"):
        report = write_dataframe(rows(spark, 3_000), CrashedOnce(crashing, str(note)), **ATOMIC)
    assert not note.exists()
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == ["job:1:0"]
    assert "the server has crashed since the write began" in caplog.text
    assert (report.rows, report.delivered, report.skipped_units) == (3_000, 3_000, 0)
    assert query(crashing, "SELECT id, key FROM events ORDER BY id") == [
        (number, number * 7919 % 97) for number in range(3_000)
    ]
    assert query(crashing, "SELECT rows, delivered FROM sluicegate_ledger") == [(3_000, 3_000)]
    assert query(crashing, STAGES) == [(0,)]


def test_a_destination_that_loses_rows_each_time_is_given_up(
    spark: Any, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Three runs, each with a stage that loses a row."""
    destination = sink(dsn)
    epoch = Epoch(unit=Unit(application="job", version=1), overwrite=True)
    lost: list[Stage] = []
    query(dsn, "INSERT INTO events (id, key) VALUES (-1, -1)")

    async def staged_rows() -> Stage:
        async with destination, staged(destination, epoch) as stage:
            assert await send(stage.sink, RowBatch([(1, 1), (2, 2)])) == {}
            return await stage.inventory()

    def run() -> Ran:
        lost.append(asyncio.run(staged_rows()))
        query(dsn, f'DELETE FROM "{lost[-1].name}" WHERE id = 2')
        return Ran(SparkWriteReport((UnitReport(partition=0, rows=2, delivered=2),)), lost[-1:], 0)

    with (
        caplog.at_level(logging.WARNING, "sluicegate.spark"),
        pytest.raises(StagesLost, match="has 1 of 2 rows") as raised,
    ):
        write_atomically(destination, epoch, Content(rows(spark, 2), ()), run)
    assert len(lost) == 3
    assert lost[2].name in str(raised.value)
    told = [f"the stage {stage.name} has 1 of 2 rows" for stage in lost[:2]]
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == told
    assert query(dsn, "SELECT id, key FROM events") == [(-1, -1)]
    assert query(dsn, STAGES) == [(0,)]
