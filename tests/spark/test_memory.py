"""The memory of a worker does not depend on how much it writes."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate.spark import write_dataframe

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate import Batch

MIB = 1 << 20


class Weighs:
    """Accepts everything, and records the peak memory of its process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def write(self, batch: Batch[Any]) -> None:
        with self.path.open("a") as file:
            file.write(
                f"{len(batch)} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}\n"
            )


@pytest.mark.long
def test_three_million_rows_through_one_task_take_no_more_memory_than_a_few(
    spark: Any, tmp_path: Path
) -> None:
    """P-T3: less than 200 MB more than the first chunk needed, with chunks of the default size."""
    rows = spark.range(0, 3_000_000, 1, 1).selectExpr(
        "id",
        "cast(id % 1000 as int) amount",
        "timestamp_micros(id) at",
        "id / 7 rate",
        "concat('a note of thirty-three ', lpad(id, 10, '0')) note",
    )
    report = write_dataframe(rows, Weighs(tmp_path / "weights"))
    weights = [
        tuple(map(int, line.split())) for line in (tmp_path / "weights").read_text().splitlines()
    ]
    assert report.rows == sum(count for count, _ in weights) == 3_000_000
    assert len(weights) > 50
    assert weights[-1][1] - weights[0][1] < 200 * MIB
