"""A chunk whose destination refuses everything fails at once: Spark reports it, and an operator
repairs it before the job runs again. White box: a partition's task in this process.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import tenacity

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
import pyarrow as pa

from sluicegate import (
    Batch,
    DeadLetter,
    RefusedError,
    Retry,
    RowBatch,
    UnavailableError,
    send,
    stack,
)
from sluicegate._core.delivery.delivery import Delivery
from sluicegate._core.delivery.pacing import Pacing
from sluicegate.spark.description import description
from sluicegate.spark.task.partition import Partition
from sluicegate.spark.task.task import ChunkHost, Cuts

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


def delivery_of(rows: int, host: ChunkHost) -> Delivery:
    return Delivery(rows, books=host, pacing=Pacing(None, backoffs=host))


async def test_a_refusal_fails_a_chunk_at_once_and_an_outage_is_waited_for(
    fake_clock: FakeClock,
) -> None:
    """decisions 0.3: with the sink's own message, and no row in the dead letters."""
    taken: list[object] = []
    error: Exception = RefusedError(
        "permission denied for table events", repair='grant INSERT on "events" to "etl"'
    )

    async def refuse(batch: Batch[int]) -> None:
        raise error

    async def take(batch: Batch[object]) -> None:
        taken.extend(batch)

    sink = stack(refuse, Retry(), DeadLetter(take))
    errors = await send(sink, RowBatch([1, 2], delivery=delivery_of(2, ChunkHost(300.0))))
    assert errors == {0: error, 1: error}
    assert "to repair: grant INSERT" in str(error)
    assert fake_clock.now() == 0.0
    error = UnavailableError("gone")
    assert len(await send(sink, RowBatch([1, 2], delivery=delivery_of(2, ChunkHost(300.0))))) == 2
    assert fake_clock.now() >= 300.0
    assert taken == []


class Closed:
    """Refuses every write."""

    async def write(self, batch: Batch[int]) -> None:
        raise RefusedError(
            "permission denied for table events", repair='grant INSERT on "events" to "etl"'
        )


@pytest.mark.parametrize("allowed", [10, math.inf])
def test_rows_are_not_given_up_for_a_destination_that_refuses_every_write(allowed: float) -> None:
    """However many dead letters a write may have: these rows are good, and the task fails."""
    cuts = Cuts(chunk_rows=10, chunk_bytes=1000, window=1)
    here = Partition(description(Closed()), cuts, "job", keep=10, stop_at=allowed)
    with pytest.raises(RefusedError, match="permission denied"):
        here.run([pa.record_batch({"id": [1, 2, 3]})])


async def test_a_try_that_follows_without_a_pause_is_counted(fake_clock: FakeClock) -> None:
    """A jittered backoff may be zero. The report counts the attempt anyway."""
    answers: list[Exception | None] = [TimeoutError("slow"), TimeoutError("slow"), None]

    async def take(batch: Batch[int]) -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    host = ChunkHost(300.0)
    assert (
        await send(
            stack(take, Retry(backoff=tenacity.wait_none())),
            RowBatch([1, 2], delivery=delivery_of(2, host)),
        )
        == {}
    )
    assert (host.retries, fake_clock.now()) == (2, 0.0)
