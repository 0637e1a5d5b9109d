"""Sinks that write with an `asyncio.TaskGroup`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import (
    Batcher,
    ItemFailed,
    Limits,
    Outcome,
    Retry,
    TransientError,
    UnknownOutcomeError,
    stack,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate import Batch
    from sluicegate.testing import FakeClock


class InParts:
    """Writes each item in a task of a group; the first attempt of each fails."""

    def __init__(self, *, translates: bool) -> None:
        self.written: list[object] = []
        self.tried: set[object] = set()
        self._translates = translates

    async def write(self, batch: Batch[Any]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for item in batch:
                    group.create_task(self._one(item))
        except ExceptionGroup as errors:
            if self._translates:
                raise TransientError("some parts failed") from errors
            raise

    async def _one(self, item: object) -> None:
        await asyncio.sleep(0)
        if item not in self.tried:
            self.tried.add(item)
            raise ConnectionResetError("once")
        self.written.append(item)


@pytest.mark.parametrize("translates", [False, True])
async def test_a_failed_group_is_tried_again(fake_clock: FakeClock, *, translates: bool) -> None:
    sink = InParts(translates=translates)
    stacked = stack(sink, Retry())
    async with Batcher(stacked, limits=Limits(max_items=1), clock=fake_clock) as batcher:
        assert await batcher.deliver("a") is Outcome.DELIVERED
    assert sink.written == ["a"]


async def test_a_group_that_is_cut_off_leaves_its_items_unknown(fake_clock: FakeClock) -> None:
    """Its children raise errors of their own when they are cancelled."""

    async def part() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ConnectionResetError("cut") from None

    async def write(items: Sequence[str]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(part())

    limits = Limits(max_items=1, flush_timeout=1)
    async with Batcher(write, limits=limits, clock=fake_clock) as batcher:
        with pytest.raises(ItemFailed) as raised:
            await batcher.deliver("a")
        await batcher.shutdown()
    assert isinstance(raised.value.__cause__, UnknownOutcomeError)
    assert batcher.tally().unknown == 1
