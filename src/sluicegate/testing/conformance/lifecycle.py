"""Tests of opening, closing and pickling."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, TypeVar

import pytest

from ..._core.batch import RowBatch
from ..._core.opening import opened
from ..._core.send import send
from ..._core.stacking import stack
from .subject import SinkUnderTest

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._core.clock import LoopClock
    from ..._core.sink import Sink

T = TypeVar("T")


class LifecycleTests(SinkUnderTest[T]):
    """Tests of opening, closing and pickling a sink."""

    async def test_opening_is_counted_and_comes_again(self, real_clock: LoopClock) -> None:
        """Only the last exit closes it, so stacks may share a sink; it reopens, and leaves no task."""
        sink = stack(self.sink())
        before = asyncio.all_tasks()
        for _ in range(2):
            async with opened(sink):
                async with opened(sink):
                    assert await send(sink, RowBatch(self.items(1))) == {}
                assert await send(sink, RowBatch(self.items(1))) == {}, (
                    "the inner of two entries has closed the sink"
                )
        await real_clock.sleep(0)
        assert asyncio.all_tasks() <= before, "the closed sink has left tasks behind"

    def test_it_opens_on_another_loop_when_the_first_has_ended(self) -> None:
        """One object works in two calls of `asyncio.run`."""
        sink = stack(self.sink())
        for _ in range(2):
            asyncio.run(self._send_with(sink))

    def test_the_description_travels(self) -> None:
        """An open or closed sink can be pickled; the copy is closed and works."""
        cloudpickle = pytest.importorskip(
            "cloudpickle", reason="pickling is tried with cloudpickle"
        )
        sink = stack(self.sink())
        asyncio.run(self._send_with(pickle.loads(cloudpickle.dumps(sink))))  # noqa: S301  # pickled here
        while_open = asyncio.run(self._send_with(sink, cloudpickle.dumps))
        asyncio.run(self._send_with(pickle.loads(while_open)))  # noqa: S301  # our own

    async def _send_with(
        self, sink: Sink[T], look: Callable[[Sink[T]], bytes] = lambda _: b""
    ) -> bytes:
        async with opened(sink):
            assert await send(sink, RowBatch(self.items(1))) == {}
            return look(sink)
