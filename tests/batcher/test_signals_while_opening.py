"""A signal while a sink is opening: `sluicegate.run` ends at once, and nothing is written."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

import sluicegate
from sluicegate import Batcher, DrainTimeout, Limits, Retry, stack
from sluicegate.batcher import ShutdownReport
from sluicegate.sinks import MemorySink, Openable

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack


class Opening(Openable, MemorySink[Any]):
    """Opens a resource, then gets a signal while it is opening."""

    def __init__(self, how: str = "ends") -> None:
        super().__init__()
        self.events: list[str] = []
        self._how = how

    async def _open(self, stack: AsyncExitStack) -> None:
        self.events.append("connected")
        stack.callback(self.events.append, "disconnected")
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.events.append("cancelled")
            if self._how == "ends":
                raise
            if self._how == "fails":
                raise ConnectionRefusedError from None


async def written_by(batcher: Callable[[], Batcher[int]], events: list[str]) -> None:
    async with batcher() as open_batcher:
        events.append("open")
        await open_batcher.add_many(range(3))
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("options", [{}, {"open_timeout": 3600.0}], ids=["one try", "many"])
@pytest.mark.parametrize("how", ["ends", "swallows it", "fails"])
def test_a_batcher_that_opens_its_sink_is_ended_by_a_signal(
    options: dict[str, Any], how: str
) -> None:
    """B-T49: the exit code is 0 because nothing was accepted; opened parts are closed."""
    sink = Opening(how)
    stacked = stack(sink, Retry(attempts=3))
    main = written_by(lambda: Batcher(stacked, limits=Limits(max_items=3), **options), sink.events)
    assert sluicegate.run(main) is None
    assert sink.events == ["connected", "cancelled", "disconnected"]
    assert sink.items == []
    assert not sink.is_open


def test_a_batcher_that_opens_in_the_background_tells_its_items() -> None:
    """B-T49: it drains until its deadline, because the sink may still open; then the exit code is
    1.
    """
    sink = Opening()
    main = written_by(
        lambda: Batcher(sink, limits=Limits(max_items=3), open="lazy", shutdown_deadline=0.2),
        sink.events,
    )
    with pytest.raises(DrainTimeout) as caught:
        sluicegate.run(main)
    report = caught.value.report
    assert isinstance(report, ShutdownReport)
    assert report.tally.unsent == 3
    assert sink.items == []
    assert sink.events == ["open", "connected", "cancelled", "disconnected"]


def test_a_sink_opened_by_the_program_is_ended_by_a_signal() -> None:
    sink = Opening()

    async def main() -> None:
        async with sink:
            sink.events.append("open")

    assert sluicegate.run(main()) is None
    assert sink.events == ["connected", "cancelled", "disconnected"]
    assert not sink.is_open
