"""Columns as a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import ArrowBatch, Batch, Outcome, PermanentError, WriteResult, send

pa = pytest.importorskip("pyarrow")

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


def batch_of(count: int) -> ArrowBatch:
    return ArrowBatch(
        pa.record_batch(
            {"id": list(range(count)), "name": [f"n{i}" if i % 2 else None for i in range(count)]}
        )
    )


def test_it_is_a_batch_of_rows() -> None:
    """design 3.1."""
    batch = batch_of(3)
    assert (len(batch), batch[1], list(batch)[2]) == (
        3,
        {"id": 1, "name": "n1"},
        {"id": 2, "name": None},
    )
    assert batch[1:] == [{"id": 1, "name": "n1"}, {"id": 2, "name": None}]
    assert batch.size_bytes
    assert batch.size_bytes > 3 * 8


@pytest.mark.parametrize("indices", [range(1, 3), [3, 0], [], [2]])
def test_picks_keep_columns_and_origins(indices: Any) -> None:
    """design 3.1: so batches resent by a retry or a bisection stay columnar."""
    batch = batch_of(4)
    picked = batch.pick(indices)
    assert isinstance(picked, ArrowBatch)
    assert picked.record_batch.column("id").to_pylist() == list(indices)
    assert list(picked.origins) == list(indices)
    assert picked.pick(range(len(picked))).record_batch.num_rows == len(indices)
    if len(indices) == 2:
        picked.settle([1], Outcome.DELIVERED)
        assert list(batch.unsettled()) == [i for i in range(4) if i != indices[1]]
        assert picked.write_key != batch.write_key


async def test_a_sink_that_knows_no_columns_iterates(fake_clock: FakeClock) -> None:
    """design 3.1: iteration yields rows."""

    class Rows:
        async def write(self, batch: Batch[Any]) -> WriteResult:
            return WriteResult.failed(
                batch, {i: PermanentError("odd") for i, row in enumerate(batch) if row["id"] % 2}
            )

    assert list(await send(Rows(), batch_of(4))) == [1, 3]


def test_forks_and_derived_batches() -> None:
    """Batches made by fan-out, dead letters and combiners."""
    batch = batch_of(3)
    with batch.fork({"a": lambda outcome: outcome}) as ways:
        assert isinstance(ways["a"], ArrowBatch)
        assert ways["a"].record_batch is batch.record_batch
    derived = batch.pick([2]).derive([{"record": batch[2]}], [[0]])
    derived.settle([0], Outcome.DEAD_LETTERED)
    assert list(batch.unsettled()) == [0, 1]
