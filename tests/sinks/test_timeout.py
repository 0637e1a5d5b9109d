"""`Timeout`: one timer per write, and one error for all items cut off in the same state."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import (
    Backoff,
    Retry,
    RowBatch,
    Timeout,
    TransientError,
    UnavailableError,
    send,
    stack,
)
from sluicegate.errors import TimedOutError

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import FakeClock


class Slow:
    """Takes `seconds`; optionally ignores its cancellation."""

    def __init__(self, seconds: float, *, deaf: bool = False) -> None:
        self.seconds = seconds
        self.deaf = deaf

    async def write(self, batch: Batch[int]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.seconds
        while loop.time() < until:
            try:
                await asyncio.sleep(until - loop.time())
            except asyncio.CancelledError:
                if not self.deaf:
                    raise


@pytest.fixture
def timers(fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times of all timers that are set, except those of `asyncio.sleep`."""
    known: list[float] = []

    def watch(loop: Any) -> None:
        real = loop.call_at

        def call_at(when: float, callback: Any, *arguments: Any, **options: Any) -> Any:
            if not arguments:
                known.append(when)
            return real(when, callback, *arguments, **options)

        monkeypatch.setattr(loop, "call_at", call_at)

    watch(fake_clock.loop)
    return known


async def test_a_write_in_time_needs_one_timer(timers: list[float]) -> None:
    assert not await send(stack(Slow(1.0), Timeout(5.0)), RowBatch([1, 2]))
    assert timers == [5.0]


async def test_a_deaf_write_has_its_verdicts_after_the_grace_period(timers: list[float]) -> None:
    batch = RowBatch([1, 2])
    writing = asyncio.ensure_future(send(stack(Slow(9.0, deaf=True), Timeout(5.0)), batch))
    await asyncio.sleep(5.05)
    assert not batch.delivery.closed
    await asyncio.sleep(0.1)
    assert batch.delivery.closed
    await writing
    assert timers == [5.0, 5.1]


async def test_items_cut_off_in_the_same_state_share_their_error(fake_clock: FakeClock) -> None:
    errors = await send(stack(Slow(9.0), Timeout(5.0)), RowBatch(range(500)))
    assert len(errors) == 500
    (error,) = {id(error): error for error in errors.values()}.values()
    assert isinstance(error, TimedOutError)


async def test_items_cut_off_in_different_states_have_different_errors(
    fake_clock: FakeClock,
) -> None:
    """Some items wait after their own errors, some after other errors, and some are at the
    destination.
    """
    one, other = TransientError("one"), TransientError("other")

    class Sink(Slow):
        async def write(self, batch: Batch[int]) -> None:
            batch.delivery.failed({0: one, 1: one, 2: other})
            batch.hold([3, 4])
            await super().write(batch)

    errors = await send(stack(Sink(9.0), Timeout(5.0)), RowBatch(range(6)))
    assert errors[0] is errors[1] is one
    assert errors[2] is other
    assert errors[3] is errors[4]
    assert isinstance(errors[3], UnavailableError)
    assert isinstance(errors[5], TimedOutError)


async def test_a_cancellation_from_outside_at_the_time_of_the_limit_passes_through(
    fake_clock: FakeClock,
) -> None:
    writing = asyncio.ensure_future(
        send(stack(Slow(9.0), Timeout(5.0), Retry(backoff=Backoff(base=0.0))), RowBatch([1]))
    )
    asyncio.get_running_loop().call_at(5.0, lambda: writing.cancel())
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert writing.cancelled()
