"""`delivery="atomic"` on a real Spark and a real PostgreSQL."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
from tests.spark.sql import query

from penstock import Batch, Retry, Sink, Timeout, WriteResult, send, stack
from penstock._core.decorator import WrappingSink
from penstock.sinks import PostgresSink
from penstock.spark import DeadLettersError, write_dataframe

from .conftest import INVERSIONS, WHOLE, rows

STAGES = "SELECT count(*) FROM pg_class WHERE relpersistence = 'u' AND relkind = 'r' AND relname LIKE 'penstock\\_%'"
ATOMIC: dict[str, Any] = {"delivery": "atomic", "app_id": "job", "version": 1, "key": "key", "order_by": "id", "buckets": 3}


def is_first(note: str) -> bool:
    """Whether nobody has taken the note yet; takes it."""
    try:
        Path(note).unlink()
    except FileNotFoundError:
        return False
    return True


class KilledOnce(WrappingSink[Any]):
    """Kills its process with half of a batch written; but only the first that comes here."""

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
    return stack(destination if note is None else KilledOnce(destination, str(note)), Timeout(30.0), Retry())


@pytest.mark.parametrize("delivery", ["atomic", "bucket"])
def test_a_worker_killed_in_the_middle_changes_nothing(spark: Any, dsn: str, tmp_path: Path, delivery: str) -> None:
    """P-T4, P-T8, P-T9: its half of a batch is in no table; the attempt after it, or a repeated write, adds what is missing and no more."""
    note = tmp_path / "kill"
    note.touch()
    options: dict[str, Any] = ATOMIC | {"delivery": delivery, "chunk_rows": 500}
    report = write_dataframe(rows(spark, 6_000), sink(dsn, note), **options)
    assert not note.exists()
    assert (report.rows, report.delivered, report.skipped_units) == (6_000, 6_000, 0)
    assert sorted(unit.attempt for unit in report.units) == [0, 0, 1]
    again = write_dataframe(rows(spark, 6_000, partitions=2), sink(dsn), **options)
    assert (again.rows, again.delivered, again.skipped_units) == (6_000, 6_000, len(again.units))
    assert query(dsn, WHOLE) == [(6_000, 6_000)]
    assert query(dsn, INVERSIONS) == [(0,)]
    assert query(dsn, STAGES) == [(0,)]


def test_dead_rows_over_the_limit_leave_nothing_and_an_overwrite_leaves_the_old(spark: Any, dsn: str) -> None:
    """P-T10, P-T14: not a row of any task, and no stage."""
    query(dsn, "INSERT INTO events (id, key) VALUES (-1, -1); ALTER TABLE events ADD CONSTRAINT range CHECK (id NOT IN (5, 7))")
    with pytest.raises(DeadLettersError, match="2 of 1000 rows failed for good"):
        write_dataframe(rows(spark, 1_000), sink(dsn), mode="overwrite", max_dead_letters=1, **ATOMIC)
    assert query(dsn, "SELECT id FROM events") == [(-1,)]
    assert query(dsn, STAGES) == [(0,)]
    report = write_dataframe(rows(spark, 1_000), sink(dsn), mode="overwrite", max_dead_letters=2, **ATOMIC)
    assert (report.rows, report.delivered, report.failed) == (1_000, 998, 2)
    assert query(dsn, WHOLE) == [(998, 998)]
    again = write_dataframe(rows(spark, 1_000, partitions=1), sink(dsn), mode="overwrite", **ATOMIC)
    assert (again.rows, again.delivered, again.failed, again.skipped_units) == (1_000, 998, 2, 1)
    assert query(dsn, WHOLE) == [(998, 998)]
    assert query(dsn, STAGES) == [(0,)]
