"""Random interleavings of writers and a reader, one statement at a time, and concurrently."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.streams import horizon_help as planted
from tests.postgres.streams.horizon_help import faults, scene

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.postgres.streams.horizon_help import Scene
    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock

WRITERS = 8
STEPS = 300
TRANSACTIONS = 40


class Writer:
    """A connection that appends to its own stream in transactions of random shape."""

    def __init__(self, here: Scene, con: Any, name: str, rng: random.Random) -> None:
        self._here = here
        self._con = con
        self._stream = f"writer-{name}"
        self._rng = rng
        self._is_open = False
        self._savepoints = 0

    async def step(self) -> None:
        """Execute one statement."""
        if not self._is_open:
            await self._con.execute("BEGIN")
            self._is_open = True
            return
        draw = self._rng.random()
        if draw < 0.45:
            await self._here.append(self._con, stream=self._stream, count=self._rng.randint(1, 3))
        elif draw < 0.6:
            self._savepoints += 1
            await self._con.execute(f"SAVEPOINT s{self._savepoints}")
        elif draw < 0.75 and self._savepoints:
            to = self._rng.randint(1, self._savepoints)
            does = self._rng.choice(["ROLLBACK TO", "RELEASE"])
            await self._con.execute(f"{does} SAVEPOINT s{to}")
            self._savepoints = to - (does == "RELEASE")
        else:
            await self.end()

    async def end(self) -> None:
        """End the transaction, usually with a commit."""
        if self._is_open:
            await self._con.execute("COMMIT" if self._rng.random() < 0.7 else "ROLLBACK")
            self._is_open = False
            self._savepoints = 0


@asynccontextmanager
async def writers(here: Scene, rng: random.Random) -> AsyncGenerator[list[Writer]]:
    async with AsyncExitStack() as stack:
        cons = [await stack.enter_async_context(here.log.connected()) for _ in range(WRITERS)]
        yield [Writer(here, con, str(n), random.Random(rng.random())) for n, con in enumerate(cons)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "bug",
    faults(planted.NO_MARK, planted.NOTE_OF_SESSION, planted.NOTE_BEYOND_SAVEPOINT),
    ids=["as installed", "no mark", "note of session", "note beyond savepoint"],
)
async def test_interleaved_statements_lose_nothing(
    log: Log, real_clock: LoopClock, bug: str | None, seed: int
) -> None:
    """S-T1, S18: the reader delivers every committed message, once and in order, and no message
    that was rolled back. With the same order of statements each fault loses some.
    """
    rng = random.Random(seed)
    async with scene(log, bug) as here, writers(here, rng) as crowd:
        for _ in range(STEPS):
            turn = rng.randrange(WRITERS + 2)
            await (here.reader.read() if turn >= WRITERS else crowd[turn].step())
        for writer in crowd:
            await writer.end()
        lost = await here.lost()
        assert bool(lost) == (bug is not None)
        stored = await here.stored()
        assert len(stored) > STEPS / 10
        assert set(here.reader.delivered) <= set(stored)


async def test_writers_side_by_side_lose_nothing(log: Log, real_clock: LoopClock) -> None:
    """S-T1, S18: the same without turns, with a reader that never pauses."""
    rng = random.Random(7)
    async with scene(log) as here, writers(here, rng) as crowd:

        async def write(writer: Writer) -> None:
            for _ in range(TRANSACTIONS):
                await writer.step()
                await writer.step()
                await writer.end()

        async def read() -> None:
            while not all(task.done() for task in tasks):
                await here.reader.read()

        tasks = [asyncio.create_task(write(writer)) for writer in crowd]
        await asyncio.gather(read(), *tasks)
        assert await here.lost() == []
        assert set(here.reader.delivered) == set(await here.stored())
