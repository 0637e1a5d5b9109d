"""The fake clock: exact times, in order, advanced manually and automatically."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from sluicegate import ConfigError
from sluicegate.batcher import LoopClock
from sluicegate.testing import FakeClock, WouldHang

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from sluicegate.batcher import Clock


def recorder(clock: Clock, into: list[tuple[str, float]], name: str) -> Callable[[], None]:
    return lambda: into.append((name, clock.now()))


async def test_a_jump_lands_on_the_exact_time_of_the_timer(fake_clock: FakeClock) -> None:
    await fake_clock.sleep(0.1)
    await asyncio.sleep(0.2)
    assert fake_clock.now() == 0.1 + 0.2


async def test_timers_fire_in_time_order_at_their_exact_time(fake_clock: FakeClock) -> None:
    fired: list[tuple[str, float]] = []
    for name, when in (("c", 3.3), ("a", 1e-9), ("b", 0.1)):
        fake_clock.call_at(when, recorder(fake_clock, fired, name))
    await fake_clock.sleep(5)
    assert fired == [("a", 1e-9), ("b", 0.1), ("c", 3.3)]


@pytest.mark.parametrize("start", [0.0, 1.0, 1e9])
def test_no_timer_fires_before_its_time(start: float) -> None:
    async def main() -> None:
        fired: list[float] = []
        due = clock.now() + 1.0
        clock.call_at(due, lambda: fired.append(clock.now()))
        await clock.advance(1.0 - 1e-6)
        assert clock.now() < due
        assert fired == []
        await clock.advance(1.0)
        assert fired == [due]

    with FakeClock(start) as clock:
        clock.run(main())


def test_advance_fires_repeated_timers_on_the_way() -> None:
    fired: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def again() -> None:
            fired.append(clock.now())
            loop.call_at(clock.now() + 1.0, again)

        loop.call_at(1.0, again)
        await clock.advance(3.5)
        assert clock.now() == 3.5

    with FakeClock() as clock:
        clock.run(main())
    assert fired == [1.0, 2.0, 3.0]


async def test_advance_runs_what_becomes_ready_between_timers(fake_clock: FakeClock) -> None:
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await asyncio.sleep(nap)
            seen.append((name, fake_clock.now()))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("a", 1.0, 1.0, 1.0))
        group.create_task(sleeper("b", 1.5, 1.0))
        await fake_clock.advance(timedelta(seconds=3))
        assert seen == [("a", 1.0), ("b", 1.5), ("a", 2.0), ("b", 2.5), ("a", 3.0)]


async def test_what_is_set_now_for_the_same_span_fires_within_the_advance(
    fake_clock: FakeClock,
) -> None:
    fired = 0

    def fire() -> None:
        nonlocal fired
        fired += 1

    for count in range(1, 101):
        asyncio.get_running_loop().call_later(0.1, fire)
        await fake_clock.advance(0.1)
        assert fired == count


async def test_a_jump_never_lands_on_a_cancelled_timer(fake_clock: FakeClock) -> None:
    loop = asyncio.get_running_loop()
    handles = [loop.call_at(when, lambda: pytest.fail("cancelled")) for when in (1.0, 2.0, 4.0)]
    for handle in handles:
        handle.cancel()
    seen: list[float] = []
    loop.call_at(3.0, lambda: seen.append(loop.time()))
    await asyncio.sleep(5.0)
    assert seen == [3.0]


async def test_timeouts_of_the_standard_library_are_virtual(fake_clock: FakeClock) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 60)
    with pytest.raises(TimeoutError):
        async with LoopClock().timeout_at(180.0):
            await asyncio.Event().wait()
    assert fake_clock.now() == 180.0


async def test_the_wall_moves_with_the_time(fake_clock: FakeClock) -> None:
    before = fake_clock.wall_time()
    await fake_clock.advance(2.0)
    assert fake_clock.wall_time() == before + 2.0


async def test_two_advances_at_once_end_each_at_its_own_target(fake_clock: FakeClock) -> None:
    async def move(seconds: float) -> float:
        await fake_clock.advance(seconds)
        return fake_clock.now()

    assert list(await asyncio.gather(move(2.0), move(1.0), move(3.0))) == [2.0, 1.0, 3.0]


async def test_a_cancelled_advance_leaves_the_time_where_it_is(fake_clock: FakeClock) -> None:
    task = asyncio.ensure_future(fake_clock.advance(10.0))
    asyncio.get_running_loop().call_at(4.0, task.cancel)
    await asyncio.wait([task])
    assert task.cancelled()
    assert fake_clock.now() == 4.0


async def test_run_until_idle_lets_everything_ready_run_and_moves_no_time(
    fake_clock: FakeClock,
) -> None:
    steps = 0

    async def walk() -> None:
        nonlocal steps
        for _ in range(50):
            await asyncio.sleep(0)
            steps += 1
        await asyncio.sleep(1.0)
        steps += 1

    async with asyncio.TaskGroup() as group:
        group.create_task(walk())
        await fake_clock.run_until_idle()
        assert (steps, fake_clock.now()) == (50, 0.0)
    assert (steps, fake_clock.now()) == (51, 1.0)


async def test_wait_for_wakes_in_the_round_in_which_the_predicate_comes_true(
    fake_clock: FakeClock,
) -> None:
    box: list[int] = []
    loop = asyncio.get_running_loop()
    loop.call_at(1.0, box.append, 1)
    loop.call_at(2.0, box.append, 2)
    await fake_clock.wait_for(lambda: box, timeout=5)
    assert (box, fake_clock.now()) == ([1], 1.0)
    await fake_clock.wait_for(lambda: len(box) == 2)
    assert fake_clock.now() == 2.0
    await fake_clock.wait_for(lambda: True, timeout=0)


async def test_wait_for_ends_with_a_timeout_a_hang_or_the_predicates_error(
    fake_clock: FakeClock,
) -> None:
    with pytest.raises(TimeoutError, match="still false"):
        await fake_clock.wait_for(lambda: False, timeout=2.5)
    assert fake_clock.now() == 2.5
    with pytest.raises(WouldHang, match="still false"):
        await fake_clock.wait_for(lambda: False)
    answers = iter([False])  # on the second call, it raises
    with pytest.raises(ZeroDivisionError):
        await fake_clock.wait_for(lambda: next(answers, None) is None and 1 / 0)


async def test_a_clock_refuses_a_loop_that_is_not_its_own(real_clock: LoopClock) -> None:
    with FakeClock() as clock:
        for refused in (
            clock.sleep(1),
            clock.advance(1),
            clock.run_until_idle(),
            clock.wait_for(lambda: True),
        ):
            with pytest.raises(RuntimeError, match=r"clock\.run"):
                await refused
        with pytest.raises(RuntimeError, match="running loop"):
            clock.run(asyncio.sleep(0))


@pytest.mark.parametrize(
    "arguments",
    [{"start": float("nan")}, {"patience": 0}, {"max_rounds": 0}],
)
def test_bad_arguments_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        FakeClock(**arguments)  # type: ignore[arg-type]  # on purpose


async def test_a_negative_advance_is_refused(fake_clock: FakeClock) -> None:
    with pytest.raises(ConfigError, match="seconds=-1"):
        await fake_clock.advance(-1)


def test_several_runs_share_the_time_and_closing_ends_what_is_left() -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(1)
            ended.append("background")

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            ended.append("generator")

    async def main() -> asyncio.Task[None]:
        await asyncio.sleep(1)
        kept.append(generator)
        await anext(generator)
        return asyncio.ensure_future(background())

    kept: list[object] = []
    generator = numbers()
    clock = FakeClock()
    task = clock.run(main())
    clock.run(asyncio.sleep(1))
    assert clock.now() == 2.0
    assert any(line.startswith("task ") and "background" in line for line in clock.leftovers())
    clock.close()
    clock.close()
    assert task.cancelled()
    assert ended == ["background", "generator"]
    assert clock.leftovers() == []
    assert repr(clock) == "FakeClock(now=3.0)"


def test_debug_mode_works() -> None:
    with FakeClock() as clock:
        clock.loop.set_debug(True)
        clock.run(asyncio.sleep(10))
        assert clock.run(asyncio.to_thread(lambda: 7)) == 7
        assert clock.now() == 10.0
