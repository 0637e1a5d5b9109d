"""A deadline that can only move earlier, and the waits that it limits.

White box: the countdown alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sluicegate.batcher.drain import Countdown

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from sluicegate.testing import FakeClock

    Wait = Callable[[Countdown], Coroutine[None, None, object]]


def never() -> bool:
    return False


async def test_a_wait_ends_with_its_condition(fake_clock: FakeClock) -> None:
    countdown = Countdown(fake_clock, 10.0)
    done: list[bool] = []

    def change() -> None:
        done.append(True)
        countdown.wake()

    fake_clock.call_at(fake_clock.now() + 3.0, change)
    await countdown.until(lambda: bool(done))
    assert fake_clock.now() == countdown.began + 3.0


async def test_a_wake_without_the_condition_changes_nothing(fake_clock: FakeClock) -> None:
    countdown = Countdown(fake_clock, 10.0)
    fake_clock.call_at(fake_clock.now() + 3.0, countdown.wake)
    await countdown.until(never)
    assert fake_clock.now() == countdown.deadline


@pytest.mark.parametrize(("part", "seconds"), [(1, 8.0), (0.5, 9.0), (0, 10.0)])
async def test_a_wait_ends_at_its_part_of_the_reserve(
    fake_clock: FakeClock, part: float, seconds: float
) -> None:
    countdown = Countdown(fake_clock, 10.0)
    await countdown.until(never, part=part)
    assert fake_clock.now() == countdown.began + seconds
    assert countdown.at(part) == countdown.began + seconds


async def test_a_wait_ends_at_a_time_of_its_own(fake_clock: FakeClock) -> None:
    countdown = Countdown(fake_clock, 10.0, longest_reserve=1.0)
    assert countdown.at(1) == countdown.began + 9.0
    await countdown.until(never, latest=countdown.began + 2.0)
    assert fake_clock.now() == countdown.began + 2.0


async def test_the_deadline_moves_earlier_during_a_wait_and_never_later(
    fake_clock: FakeClock,
) -> None:
    moved: list[float] = []
    countdown = Countdown(fake_clock, 10.0, on_move=moved.append)
    began = countdown.began
    fake_clock.call_at(began + 1.0, lambda: countdown.hasten(5.0))
    fake_clock.call_at(began + 2.0, lambda: countdown.hasten(5.0))
    await countdown.until(never, part=1)
    assert fake_clock.now() == began + 5.0
    assert (countdown.deadline, countdown.reserve) == (began + 6.0, 1.0)
    assert moved == [began + 5.0]


async def test_a_cancelled_wait_means_now(fake_clock: FakeClock) -> None:
    countdown = Countdown(fake_clock, 10.0)
    wait = asyncio.get_running_loop().create_task(countdown.until(never))
    fake_clock.call_at(fake_clock.now() + 4.0, wait.cancel)
    await wait
    assert fake_clock.now() == countdown.deadline == countdown.at(1) == countdown.began + 4.0
    await countdown.until(never)
    assert fake_clock.now() == countdown.deadline


async def test_a_task_that_ends_in_time_ends_by_itself(fake_clock: FakeClock) -> None:
    countdown = Countdown(fake_clock, 10.0)
    task = asyncio.get_running_loop().create_task(fake_clock.sleep(9.0))
    assert await countdown.ends(task)
    assert fake_clock.now() == countdown.began + 9.0


async def test_a_task_that_needs_no_time_ends_by_itself_without_any_left(
    fake_clock: FakeClock,
) -> None:
    countdown = Countdown(fake_clock, 0.0)
    assert await countdown.ends(asyncio.get_running_loop().create_task(fake_clock.sleep(0)))


async def test_a_late_task_is_cancelled(fake_clock: FakeClock) -> None:
    countdown = Countdown(fake_clock, 10.0)
    task = asyncio.get_running_loop().create_task(fake_clock.sleep(30.0))
    assert not await countdown.ends(task, part=0.5)
    assert task.cancelled()
    assert fake_clock.now() == countdown.began + 9.0


async def test_a_late_task_that_ignores_its_cancellation_is_left_behind(
    fake_clock: FakeClock,
) -> None:
    async def deaf() -> None:
        until = fake_clock.now() + 30.0
        while fake_clock.now() < until:
            try:
                await fake_clock.sleep(until - fake_clock.now())
            except asyncio.CancelledError:
                continue

    countdown = Countdown(fake_clock, 10.0)
    task = asyncio.get_running_loop().create_task(deaf())
    assert not await countdown.ends(task)
    assert not task.done()
    assert fake_clock.now() == countdown.deadline
    await task
