"""Child processes are reaped, whatever the state of their pipes and of the task."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from typing import TYPE_CHECKING

import pytest
from tests.children import child

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from sluicegate.batcher import LoopClock

BUSY = "import sys\nprint('ready', flush=True)\nwhile True:\n    print('x' * 999, file=sys.stderr)"
"""It fills a pipe that is not read."""


async def test_a_cancelled_task_reaps_its_child_before_it_ends(real_clock: LoopClock) -> None:
    """Cancelled in its block, and again while it reaps the child."""
    has_begun: asyncio.Future[Process] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), PIPE)
        async with child(sys.executable, "-c", BUSY, **pipes) as process:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
            has_begun.set_result(process)
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    process = await has_begun
    task.cancel()
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelling() == 2
    assert process.returncode == -signal.SIGKILL
    assert process.stdin is not None
    assert process.stdin.is_closing()


async def test_a_child_that_has_ended_by_itself_keeps_its_code(real_clock: LoopClock) -> None:
    async with child(sys.executable, "-c", "raise SystemExit(7)", stdout=PIPE) as process:
        assert await process.wait() == 7
    assert process.returncode == 7
