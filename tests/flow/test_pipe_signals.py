"""`sluicegate.run(pipe.run())`: a signal drains the pipe, a second one ends the drain at once."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest
from piping import P0, Destination, key_of, records

import sluicegate
from sluicegate import Batcher, DrainTimeout, Limits, flow
from sluicegate.consumer import ConsumerObserver, MemoryLog, MemorySource

if TYPE_CHECKING:
    from sluicegate import Batch


class Interrupting(Destination):
    """Sends a signal during its first write; with `hangs` that write never ends."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__()

        async def interrupt(batch: Batch[Any]) -> None:
            if len(self.writes) == 1:
                signal.raise_signal(signal.SIGINT)
                if hangs:
                    await asyncio.get_running_loop().create_future()

        self.before = interrupt


class Impatient(ConsumerObserver):
    """Sends another signal when the drain begins."""

    def on_state(self, name: str, state: str) -> None:
        if state == "draining":
            signal.raise_signal(signal.SIGINT)


def ran(sink: Destination, drain: float, *observers: ConsumerObserver) -> MemoryLog:
    """Run a pipe until signals have ended it."""
    log = MemoryLog(records("ab" * 10))
    batcher = Batcher(sink, key=key_of, limits=Limits(max_items=4, max_delay=0.0))
    pipe = flow.pipe(MemorySource(log), batcher, drain=drain, observers=observers)
    try:
        assert sluicegate.run(pipe.run()) is None
    except DrainTimeout as error:
        error.add_note(f"position {log.start(P0).offset}")
        raise
    return log


def test_a_signal_drains_a_pipe() -> None:
    sink = Interrupting(hangs=False)
    log = ran(sink, 5.0)
    assert sorted(sink.offsets) == list(range(20))
    assert log.start(P0).offset == 20


def test_a_drain_that_cuts_writes_off_is_no_success() -> None:
    """The exit code is 1, and the report accounts for the rows."""
    with pytest.raises(DrainTimeout, match="4 unknown") as caught:
        ran(Interrupting(hangs=True), 0.5)
    assert "position 0" in caught.value.__notes__


def test_a_second_signal_ends_the_drain_at_once() -> None:
    with pytest.raises(DrainTimeout, match="4 unfinished") as caught:
        ran(Interrupting(hangs=True), 50.0, Impatient())
    assert "position 0" in caught.value.__notes__
