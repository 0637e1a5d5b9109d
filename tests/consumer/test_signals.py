"""`sluicegate.run` with a consumer: a signal drains it, and a second one ends the drain at once.

White box: waits of the loop's own clock.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from consumer_help import P0, Recorder, log_of
from watch_help import Gate

import sluicegate
from sluicegate import Consumer
from sluicegate.consumer import Commits, MemorySource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from sluicegate.consumer import ClaimHost
    from sluicegate.testing import FakeClock

PROGRAM = """
import asyncio, math, sys
import sluicegate
from sluicegate._core.clock import LOOP_CLOCK, wait_until
from sluicegate.consumer import Record
from sluicegate.consumer import MemoryLog, MemorySource

log = MemoryLog([Record("t", 0, offset, key) for offset, key in enumerate("aab")])

async def handle(message):
    if message.offset == 0:
        print("handling", flush=True)
        try:
            await asyncio.sleep(3600 if sys.argv[1] == "twice" else 0.2)
        except asyncio.CancelledError:
            print("cut", flush=True)
            raise

async def main():
    consumer = sluicegate.Consumer(MemorySource(log), name="billing", drain=60.0)
    async with consumer:
        telling = asyncio.create_task(tell(consumer))
        await consumer.run(handle)

async def tell(consumer):
    await consumer.wait_ready()
    run = consumer._open()
    await wait_until(LOOP_CLOCK, math.inf, run.ending)
    assert run.is_ending
    print("draining", flush=True)

try:
    sluicegate.run(main())
finally:
    print(log.positions, flush=True)
"""


def ended(tmp_path: Path, how: str) -> tuple[int, list[str], str]:
    """Exit code, output lines and errors of a program that gets one or two SIGTERM."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, str(program), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "handling\n"
        child.send_signal(signal.SIGTERM)
        assert child.stdout.readline() == "draining\n"
        if how == "twice":
            child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=30)
    return child.returncode, out.splitlines(), err


def test_a_signal_drains_and_a_second_one_ends_the_drain(tmp_path: Path) -> None:
    """O-T9, consumer/C:B3: exit code 0 only after a complete drain; the report names the unfinished
    messages.
    """
    code, out, err = ended(tmp_path, "once")
    assert (code, err) == (0, "")
    assert "Position(offset=1, metadata='" in out[-1], "the running one and the other key's"

    code, out, err = ended(tmp_path, "twice")
    assert code == 1
    assert out[0] == "cut"
    assert "Position(offset=0, metadata='" in out[-1]
    assert err.splitlines()[-1] == (
        "sluicegate.DrainTimeout: the drain was incomplete: billing: 1 messages acknowledged; "
        "1 unfinished and delivered again: t/0@0 (key 'a', attempt 1)"
    )


async def test_a_cancellation_during_the_last_commit_is_raised_with_the_report(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:B3: `stop` began the drain, and the commit may or may not be stored."""
    source = MemorySource(log_of("a"), clock=fake_clock, commit_seconds=10.0)
    consumer = Consumer(source, clock=fake_clock, drain=30.0, commits=Commits(every=100.0))
    async with consumer:
        run = asyncio.create_task(consumer.run(Recorder()))
        await fake_clock.advance(1.0)
        consumer.stop()
        await fake_clock.advance(5.0)
        run.cancel()
        with pytest.raises(asyncio.CancelledError) as raised:
            await run
    assert raised.value.__notes__ == [
        "consumer: 1 messages acknowledged; the last commit failed (CancelledError)"
    ]
    assert source.log.positions == {}


async def test_a_cancellation_during_a_drain_is_raised_and_ends_it(fake_clock: FakeClock) -> None:
    """consumer/C:B3: after `stop` and a cancellation, `run` does not return normally."""
    source = MemorySource(log_of("a", "b"), clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, drain=30.0)
    async with consumer:
        run = asyncio.create_task(consumer.run(Gate(b=None)))
        await fake_clock.advance(1.0)
        consumer.stop()
        await fake_clock.advance(1.0)
        began = fake_clock.now()
        run.cancel()
        with pytest.raises(asyncio.CancelledError) as raised:
            await run
        assert fake_clock.now() - began < 1.0
    assert "t/0@0 (key 'a', attempt 1)" in raised.value.__notes__[0]
    assert source.log.positions[P0].offset == 0


async def test_three_cancellations_still_end_with_the_report(fake_clock: FakeClock) -> None:
    """consumer/C:B3: during the grace period of a deaf handler."""

    async def handle(message: object) -> None:
        for _ in range(5):
            try:
                await fake_clock.sleep(1.0)
            except asyncio.CancelledError:
                continue

    source = MemorySource(log_of("a"), clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, drain=30.0)
    async with consumer:
        run = asyncio.create_task(consumer.run(handle))
        await fake_clock.advance(0.5)
        run.cancel()
        await fake_clock.advance(0.01)
        run.cancel()
        await fake_clock.advance(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError) as raised:
            await run
        await fake_clock.advance(5.0)
    assert "t/0@0 (key 'a', attempt 1)" in raised.value.__notes__[0]
    assert source.log.positions == {}


class OpeningSource(MemorySource):
    """Sends a signal while it opens."""

    swallows = False

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncGenerator[None]:
        async with super().open(host):
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                if not self.swallows:
                    raise
            yield


@pytest.mark.parametrize("swallows", [False, True], ids=["ends", "swallows the cancellation"])
def test_a_consumer_that_opens_its_source_is_ended_by_a_signal(swallows: bool) -> None:
    """Nothing is handled or committed; the exit code is 0."""
    log, recorder = log_of("aab"), Recorder()
    source = OpeningSource(log)
    source.swallows = swallows

    async def main() -> None:
        async with Consumer(source) as consumer:
            await consumer.run(recorder)

    assert sluicegate.run(main()) is None
    assert recorder.offsets == []
    assert log.positions == {}
