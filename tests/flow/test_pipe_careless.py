"""Mistakes in the use of pipes, and their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from piping import P0, Destination, piped, records, refuse

from sluicegate import Batcher, ClosedError, ConfigError, Limits, Nak
from sluicegate.consumer import ConsumerObserver, Manual, MemoryLog

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


@pytest.mark.parametrize("name", ["stop", "stats", "explain"])
async def test_a_pipe_that_does_not_run_yet_says_how_to_run_it(
    fake_clock: FakeClock, name: str
) -> None:
    pipe = piped(MemoryLog(records("a")), Destination(), fake_clock)
    with pytest.raises(ClosedError, match=r"pipe is not open; use `await pipe.run\(\)`"):
        getattr(pipe, name)()


@pytest.mark.parametrize("kind", [Nak, Manual, "async generator"])
async def test_a_transform_that_returns_what_is_no_row_is_told(
    fake_clock: FakeClock, kind: Any
) -> None:
    """It is neither written as a row nor acknowledged."""

    async def generator() -> Any:
        yield {"n": 1}

    def transform(message: Any) -> Any:
        return generator() if isinstance(kind, str) else kind()

    log, sink = MemoryLog(records("a")), Destination()
    report = await piped(log, sink, fake_clock, transform=transform, key=str).run()
    assert sink.applied == []
    assert log.start(P0).offset == 0
    (blocked,) = report.source.blocked
    assert "for another attempt, raise TransientError" in str(blocked.error)


async def test_any_iterator_is_a_row_per_element(fake_clock: FakeClock) -> None:
    sink = Destination()
    log = MemoryLog(records("ab"))
    await piped(log, sink, fake_clock, transform=lambda message: map(str, "xy"), key=str).run()
    assert sorted(sink.applied) == ["x", "x", "y", "y"]


async def test_an_open_batcher_is_refused(fake_clock: FakeClock) -> None:
    """Whether it was opened by the caller or by another pipe."""
    log = MemoryLog(records("a"))
    async with Batcher(Destination(), clock=fake_clock) as batcher:
        with pytest.raises(ConfigError, match="is open: a pipe opens and closes its batcher"):
            await piped(log, Destination(), fake_clock, batcher=batcher).run()
        await batcher.add(1)
    pipe = piped(log, Destination(), fake_clock, batcher=batcher)
    assert (await pipe.run()).complete


class PoisonWatch(ConsumerObserver):
    """The offsets of reported poison messages."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def on_poison(self, name: str, message: Any, error: BaseException, action: str) -> None:
        self.offsets.append(message.offset)


async def test_rejected_records_are_given_up_in_their_order(fake_clock: FakeClock) -> None:
    sink, watch = Destination(), PoisonWatch()
    sink.before = refuse
    log, limits = MemoryLog(records("abcdefghij")), Limits(max_items=10, max_delay=0.1)
    options: dict[str, Any] = {"limits": limits, "poison": "skip", "observers": [watch]}
    await piped(log, sink, fake_clock, **options).run()
    assert watch.offsets == list(range(10))
