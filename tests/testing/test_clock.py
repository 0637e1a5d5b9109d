"""The fake clock: exact, in order, and it never hangs."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.testing import FakeClock, WouldHang

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock


def test_time_jumps_to_the_exact_moment_of_the_next_timer() -> None:
    """batcher/B49, batcher/4b.13: including third-party timeouts; no real time passes."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        seen = [loop.time()]
        await asyncio.sleep(3600.1)
        seen.append(loop.time())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await asyncio.Event().wait()
        seen.append(loop.time())
        return seen

    with FakeClock() as clock:
        assert clock.run(main()) == [0.0, 3600.1, 3600.1 + 0.3]


async def test_advance_fires_every_timer_on_the_way_at_its_time(fake_clock: FakeClock) -> None:
    """batcher/B49: including repeated ones, and none before its time."""
    fired: list[float] = []

    def again() -> None:
        fired.append(fake_clock.now())
        if len(fired) < 3:
            fake_clock.call_at(fake_clock.now() + 1.0, again)

    fake_clock.call_at(1.0, again)
    await fake_clock.advance(0.999999)
    assert fired == []
    await fake_clock.advance(9.0)
    assert fired == [1.0, 2.0, 3.0]
    assert fake_clock.now() == 9.999999


@given(
    st.lists(st.tuples(st.floats(0.0, 100.0), st.booleans()), max_size=30),
    st.lists(st.floats(0.0, 60.0), max_size=5),
)
def test_timers_fire_as_a_simple_model_says(
    timers: list[tuple[float, bool]], steps: list[float]
) -> None:
    """In time order, at their exact times; cancelled ones do not fire."""

    async def main(clock: FakeClock) -> list[float]:
        fired: list[float] = []
        handles = [clock.call_at(when, lambda: fired.append(clock.now())) for when, _ in timers]
        for handle, (_, cancelled) in zip(handles, timers, strict=True):
            if cancelled:
                handle.cancel()
        for step in [0.0, *steps]:
            await clock.advance(step)
        reached = clock.now()
        assert fired == sorted(
            when for when, cancelled in timers if not cancelled and when <= reached
        )
        for handle in handles:
            handle.cancel()
        return fired

    with FakeClock() as clock:
        clock.run(main(clock))


def test_what_would_hang_says_so_with_a_list() -> None:
    """Otherwise the test run would hang."""

    async def main() -> None:
        await asyncio.Event().wait()

    with (
        FakeClock() as clock,
        pytest.raises(WouldHang, match=r"no timer is set(?s:.*)task .* in main"),
    ):
        clock.run(main())


def test_a_thread_is_waited_for_in_real_time_and_time_stands_still() -> None:
    """A timer does not overtake work that the loop cannot see."""
    release = threading.Event()

    async def main() -> float:
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(None, release.wait, 10)
        loop.call_soon(release.set)
        async with asyncio.timeout(1000.0):
            await call
        return loop.time()

    with FakeClock() as clock:
        assert clock.run(main()) == 0.0


def test_sockets_keep_time_from_jumping() -> None:
    """A real server and a real client on the virtual loop."""

    async def main() -> tuple[bytes, float]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\n")
        line = await asyncio.wait_for(reader.readline(), 5.0)
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        return line, asyncio.get_running_loop().time()

    with FakeClock() as clock:
        assert clock.run(main()) == (b"hello\n", 0.0)


async def test_wait_for_is_woken_by_events(fake_clock: FakeClock) -> None:
    """B-T33: it ends at its timeout."""
    state: list[int] = []
    fake_clock.call_at(7.0, lambda: state.append(1))
    await fake_clock.wait_for(lambda: bool(state))
    assert fake_clock.now() == 7.0
    with pytest.raises(TimeoutError):
        await fake_clock.wait_for(lambda: len(state) > 1, timeout=2.0)
    assert fake_clock.now() == 9.0
    with pytest.raises(WouldHang):
        await fake_clock.wait_for(lambda: len(state) > 1)


async def test_a_real_clock_test_runs_on_a_loop_of_its_own(real_clock: LoopClock) -> None:
    """The other fixture of the plugin."""
    assert abs(asyncio.get_running_loop().time() - real_clock.now()) < 60
    await real_clock.sleep(0)
    assert real_clock.wall_time() > 1_700_000_000
