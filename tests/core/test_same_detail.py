"""A detail that many items share, and the digests of whole batches.

White box: a shared detail and a digest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluicegate import Batch, Batcher, Outcome
from sluicegate._core.answer import same_detail
from sluicegate._core.batch import token_of_batch

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


def test_it_is_as_a_mapping_with_an_entry_per_item() -> None:
    for indices in (range(2, 5), [2, 3, 4]):
        found = same_detail(indices, "object")
        assert dict(found) == {2: "object", 3: "object", 4: "object"}
        assert len(found) == 3
        assert found.get(5) is None
        with pytest.raises(KeyError):
            found[1]


async def test_receipts_have_it_also_of_a_part_of_a_batch(fake_clock: FakeClock) -> None:
    async def write(batch: Batch[int]) -> None:
        part = batch.pick([1, 2])
        part.settle(range(2), Outcome.DELIVERED, same_detail(range(2), "object"))

    async with Batcher(write) as batcher:
        receipts = [await batcher.submit(n) for n in range(4)]
        for receipt in receipts:
            await receipt
    assert [receipt.detail for receipt in receipts] == [None, "object", "object", None]


def test_a_whole_batch_has_the_token_of_its_indices() -> None:
    """So that a release with another implementation finds the same objects and rows."""
    assert token_of_batch("path", range(3), None) == token_of_batch("path", [0, 1, 2], None)
    assert token_of_batch("path", range(3), None) == "path-99a5826197698e6d"
    assert token_of_batch("path", range(1, 3), None) != token_of_batch("path", range(2), None)
