"""A test that would hang fails at once, with a list of the waiting tasks."""

from __future__ import annotations

import asyncio
import itertools
import threading
from contextlib import suppress

import pytest

from sluicegate.testing import FakeClock, WouldHang


async def deadlock() -> None:
    await asyncio.Event().wait()


def test_a_hang_lists_the_tasks_and_where_they_are_suspended() -> None:
    async def main() -> None:
        other = asyncio.create_task(deadlock(), name="the other one")
        await other

    with FakeClock() as clock, pytest.raises(WouldHang, match="no timer is set") as caught:
        clock.run(main())
    message = str(caught.value)
    assert "task 'the other one' running deadlock: " in message
    assert "in deadlock > " in message
    assert "in wait" in message
    assert "main" in message
    assert len(caught.traceback) == 2, "the frames of the loop tell the reader nothing"


def test_what_hangs_is_cancelled_and_may_clean_up() -> None:
    cleaned: list[float] = []

    async def main() -> None:
        try:
            await deadlock()
        finally:
            await asyncio.sleep(3.0)
            cleaned.append(clock.now())

    with FakeClock() as clock, pytest.raises(WouldHang):
        clock.run(main())
    assert cleaned == [3.0]


def test_an_error_while_cleaning_up_is_the_cause() -> None:
    async def main() -> None:
        try:
            await deadlock()
        finally:
            raise ValueError("broken cleanup")

    with FakeClock() as clock, pytest.raises(WouldHang) as caught:
        clock.run(main())
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_task_that_ignores_its_cancellation_is_left_behind() -> None:
    async def deaf() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await deadlock()

    with FakeClock() as clock, pytest.raises(WouldHang):
        clock.run(deaf())


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_what_never_comes_to_rest_counts_as_hanging(seconds: float) -> None:
    async def tick() -> None:
        for _ in itertools.repeat(None):
            await asyncio.sleep(seconds)

    async def main() -> None:
        ticking = asyncio.create_task(tick())
        await deadlock()
        await ticking

    with (
        FakeClock(max_rounds=1000) as clock,
        pytest.raises(WouldHang, match="after 1000 rounds") as caught,
    ):
        clock.run(main())
    assert "running test_what_never" in str(caught.value)


def test_advance_does_not_wait_for_ever_for_a_task_that_yields() -> None:
    async def main() -> None:
        async def spin() -> None:
            for _ in itertools.repeat(None):
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            group.create_task(spin())
            await clock.advance(1.0)

    with FakeClock(max_rounds=1000) as clock, pytest.raises(WouldHang):
        clock.run(main())


def test_a_thread_that_does_not_return_counts_as_hanging_after_the_patience() -> None:
    gate = threading.Event()

    async def main() -> None:
        await asyncio.to_thread(gate.wait)

    clock = FakeClock(patience=0.05)
    with pytest.raises(WouldHang, match="1 executor calls"):
        clock.run(main())
    with pytest.raises(WouldHang):
        clock.close()
    assert clock.loop.is_closed()
    gate.set()


def test_a_silent_socket_counts_as_hanging_after_the_patience() -> None:
    async def main() -> None:
        async with await asyncio.start_server(
            lambda _reader, writer: writer.close(), "127.0.0.1", 0
        ):
            await asyncio.sleep(1.0)

    with FakeClock(patience=0.05) as clock, pytest.raises(WouldHang, match="1 sockets"):
        clock.run(main())
