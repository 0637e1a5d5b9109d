"""Threads, sockets and activities invisible to the clock stop the time."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sluicegate.testing import FakeClock


async def test_an_executor_call_is_waited_for_in_real_time(fake_clock: FakeClock) -> None:
    gate = threading.Event()
    loop = asyncio.get_running_loop()
    loop.call_later(0.001, pytest.fail, "time jumped while a thread was out").cancel()
    jumped = loop.call_later(5.0, lambda: None)
    opener = threading.Timer(0.02, gate.set)
    opener.start()
    assert await asyncio.to_thread(gate.wait)
    opener.join()
    assert fake_clock.now() == 0.0
    jumped.cancel()


async def test_a_call_in_an_executor_of_ones_own_is_waited_for(fake_clock: FakeClock) -> None:
    with ThreadPoolExecutor() as pool:
        async with asyncio.timeout(0.001):
            assert await asyncio.get_running_loop().run_in_executor(pool, pow, 3, 2) == 9
    assert fake_clock.now() == 0.0


async def test_a_cancelled_call_holds_the_time_until_its_thread_has_ended(
    fake_clock: FakeClock,
) -> None:
    gate, started = threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        gate.wait()

    call = asyncio.ensure_future(asyncio.to_thread(block))
    await fake_clock.run_until_idle(wait_for_threads=False)
    started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    opener = threading.Timer(0.02, gate.set)
    opener.start()
    await asyncio.sleep(1.0)
    assert gate.is_set()
    opener.join()


async def test_a_call_that_never_started_holds_nothing_when_cancelled(
    fake_clock: FakeClock,
) -> None:
    gate = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        loop = asyncio.get_running_loop()
        first = loop.run_in_executor(pool, gate.wait)
        second = loop.run_in_executor(pool, gate.wait)
        await asyncio.sleep(0)
        second.cancel()
        gate.set()
        await first
        await asyncio.sleep(1.0)
    assert fake_clock.now() == 1.0


async def test_advance_waits_for_threads_unless_told_otherwise(fake_clock: FakeClock) -> None:
    gate = threading.Event()
    blocked = asyncio.ensure_future(asyncio.to_thread(gate.wait))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3.0):
            await fake_clock.advance(5.0, wait_for_threads=False)
    assert fake_clock.now() == 3.0
    gate.set()
    await fake_clock.advance(0.5)
    assert blocked.done()


async def test_nothing_jumps_while_an_external_activity_is_at_work(fake_clock: FakeClock) -> None:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    go = threading.Event()

    def work() -> None:
        with fake_clock.external():
            entered.set()
            go.wait()
            loop.call_soon_threadsafe(told.set)

    entered = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    loop.call_soon(go.set)
    async with asyncio.timeout(1.0):
        await told.wait()
    assert fake_clock.now() == 0.0
    thread.join()
    await asyncio.sleep(1.0)
    assert fake_clock.now() == 1.0


async def test_advance_moves_time_even_inside_external(fake_clock: FakeClock) -> None:
    with fake_clock.external():
        await fake_clock.advance(1.0)
    assert fake_clock.now() == 1.0


async def test_a_listening_server_and_a_real_client_talk_without_a_jump(
    fake_clock: FakeClock,
) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(30):
            writer.write(await reader.readline())
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        port: int = server.sockets[0].getsockname()[1]
        for number in range(20):
            async with asyncio.timeout(0.001):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"%d\n" % number)
                assert await reader.readline() == b"%d\n" % number
                assert await reader.read() == b""
                writer.close()
                await writer.wait_closed()
        assert fake_clock.now() == 0.0
        await fake_clock.advance(7.0)
    assert fake_clock.now() == 7.0
    await asyncio.sleep(1.0)
    assert fake_clock.now() == 8.0
