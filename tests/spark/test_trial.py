"""The trial of a sink on the driver, which a stop request ends. White box: the trial."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from sluicegate import Batch, PermanentError
from sluicegate.spark.description import WriteStopped, description, stoppable, try_out

if TYPE_CHECKING:
    from collections.abc import Callable

EVENTS: dict[str, Callable[[], object]] = {}
"""Events that the copy of a sink sends to the test; the copy shares no other state with it."""


class Destination:
    """Signals when it opens and closes; hangs, or ignores its cancellation."""

    def __init__(self, how: str) -> None:
        self._how = how

    async def __aenter__(self) -> None:
        EVENTS["opening"]()
        while self._how != "opens":
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                EVENTS["cancelled"]()
                if self._how == "hangs":
                    raise

    async def __aexit__(self, *_: object) -> None:
        EVENTS["closed"]()

    async def write(self, batch: Batch[Any]) -> None:
        raise PermanentError("a trial writes nothing")


@pytest.mark.parametrize(
    ("how", "ends_in"),
    [("hangs", "cancelled"), ("ignores its cancellation", "cancelled"), ("opens", "closed")],
)
def test_a_stop_while_the_sink_opens_ends_the_write_before_it_begins(
    how: str, ends_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, told = Event(), {"cancelled": Event(), "closed": Event()}
    monkeypatch.setitem(EVENTS, "opening", stop.set)
    for name, event in told.items():
        monkeypatch.setitem(EVENTS, name, event.set)
    checked: list[object] = []
    with pytest.raises(WriteStopped), stoppable(stop):
        try_out(description(Destination(how)), checked.append)
    assert told[ends_in].wait(30)
    assert len(checked) == (how == "opens")


def test_a_stop_before_the_write_leaves_the_sink_closed() -> None:
    stop = Event()
    stop.set()
    with pytest.raises(WriteStopped), stoppable(stop):
        try_out(b"", print)


def test_without_a_stop_the_errors_of_opening_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def opening() -> None:
        raise ConnectionRefusedError("refused")

    monkeypatch.setitem(EVENTS, "opening", opening)
    with pytest.raises(ConnectionRefusedError, match="refused") as caught:
        try_out(description(Destination("opens")), print)
    assert "opened the sink on the driver" in caught.value.__notes__[0]
