"""Shutdown on the real clock while the destination hangs and suppresses every cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from sluicegate import Batcher, Limits

from ..harness import MS, Case, Ceiling, Contender
from ..peers.deaf import DeafSink
from ..peers.queue_recipe import QueueRecipe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DEADLINE = 0.5
PATIENCE = 0.1
"""Seconds for which `sluicegate.run` waits for tasks that ignore their cancellation."""
DEAF = 1.5
"""Seconds for which the destination hangs. A peer that waits for it takes as long."""
ITEMS = 25
SIZE = 10
LATEST_END = 30.0

SHUTDOWN = f"shutdown(deadline={DEADLINE})"
PROCESS = "a process under sluicegate.run"
RECIPE = f"queue recipe under wait_for({DEADLINE})"


def _shutdown() -> float:
    async def turn() -> float:
        sink = DeafSink(DEAF)
        async with Batcher(sink, limits=Limits(max_items=SIZE), name="deaf") as batcher:
            await batcher.add_many(range(ITEMS))
            await asyncio.sleep(0)
            began = perf_counter()
            report = await batcher.shutdown(DEADLINE)
            took = perf_counter() - began
            report.verify()
            if (report.tally.unknown, len(report.unsent), report.left_behind) != (
                SIZE,
                ITEMS - SIZE,
                1,
            ):
                raise AssertionError(
                    f"expected one write left behind and the rest handed back: {report}, "
                    f"{report.left_behind} left behind"
                )
            told = report.tally
            await sink.ended.wait()  # the late completion must change nothing
            await asyncio.sleep(0)
            if batcher.tally() != told:
                raise AssertionError(
                    f"a late completion changed the tally from {told} to {batcher.tally()}"
                )
        return took

    return asyncio.run(turn())


def _recipe() -> float:
    async def turn() -> float:
        recipe = QueueRecipe(DeafSink(DEAF).write, size=SIZE, linger=0.2, depth=1000)
        queue = await recipe.__aenter__()
        for item in range(SIZE):
            await queue.put(item)
        await asyncio.sleep(0)
        began = perf_counter()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(recipe.__aexit__(), DEADLINE)
        return perf_counter() - began

    return asyncio.run(turn())


def _process() -> float:
    command = [sys.executable, "-m", "benchmarks.peers.deaf_program", str(DEADLINE), str(PATIENCE)]
    folder = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, text=True
    ) as child:
        if child.stdout is None or child.stdout.readline() != "shutting down\n":
            raise AssertionError("the program did not come as far as its shutdown")
        began = perf_counter()
        try:
            said, _ = child.communicate(timeout=LATEST_END)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
        took = perf_counter() - began
    if child.returncode or said.split() != [str(SIZE), str(ITEMS - SIZE)]:
        raise AssertionError(f"the program ended with {child.returncode} and said {said!r}")
    return took


@contextlib.contextmanager
def prepare(_: int) -> Iterator[Sequence[Contender]]:
    logger = logging.getLogger("sluicegate")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # it rightly reports the write left behind, every time
    try:
        yield (
            Contender(SHUTDOWN, _shutdown, ours=True),
            Contender(PROCESS, _process, ours=True),
            Contender(RECIPE, _recipe),
        )
    finally:
        logger.setLevel(level)


CASE = Case(
    name="shutdown",
    title=f"Shut down while a write hangs for {DEAF:g} s and swallows cancellation",
    prepare=prepare,
    items=ITEMS,
    quick_items=ITEMS,
    unit=MS,
    peers=(),
    targets=(
        Ceiling(SHUTDOWN, (DEADLINE + 0.05) * 1000),
        Ceiling(PROCESS, (DEADLINE + PATIENCE + 0.5) * 1000),
    ),
)
