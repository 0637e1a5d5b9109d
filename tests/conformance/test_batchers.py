"""B-T34: the suite for batcher factories, on the plain batcher, on a subclass of a user, and on
faulty ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.batchers import BatcherConformance

from sluicegate import Batcher, Observer
from sluicegate.batcher import Tally
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterable


class TestBatcher(BatcherConformance):
    """The plain batcher."""

    def batcher(self, sink: Any, **settings: Any) -> Batcher[Any]:
        return Batcher(sink, **settings)


class Renamed(Batcher[Any]):
    """A subclass with its own settings."""

    def __init__(self, sink: Any, **settings: Any) -> None:
        super().__init__(sink, name="ours", observers=[Observer()], **settings)


class TestSubclass(BatcherConformance):
    """With its own name and observer."""

    def batcher(self, sink: Any, **settings: Any) -> Batcher[Any]:
        return Renamed(sink, **settings)


class Forgets(Batcher[Any]):
    async def add(self, item: Any, **options: Any) -> None:
        if item != 3:
            await super().add(item, **options)


class Reverses(Batcher[Any]):
    async def add_many(self, items: Iterable[Any], **options: Any) -> None:
        await super().add_many([*items][::-1], **options)


class Miscounts(Batcher[Any]):
    def tally(self) -> Tally:
        return Tally(accepted=1)


FAULTS = [
    (Forgets, "full_batches_go_at_once"),
    (Forgets, "a_flush_is_a_fence"),
    (Reverses, "batches_are_not_used_again"),
    (Miscounts, "every_item_has_one_outcome"),
]


@pytest.mark.parametrize(("fault", "name"), FAULTS)
def test_faults_are_found(fault: type[Batcher[Any]], name: str) -> None:
    class Suite(BatcherConformance):
        def batcher(self, sink: Any, **settings: Any) -> Batcher[Any]:
            return fault(sink, **settings)

    with FakeClock() as clock, pytest.raises((AssertionError, RuntimeError)):
        clock.run(getattr(Suite(), f"test_{name}")(clock))
