"""A frozen process that holds a lock, and a clock that a test moves.

As a program: `python -m tests.postgres.subscriptions.frozen KIND PLACE`.

White box: the name of a slot's lock, and the start of a subscription.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.children import child
from tests.conformance.sqlite_subscriptions import SQLiteSubscriptions

from sluicegate._core.subscriptions import SLOTS, SubscriptionStart, slot_lock
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Move, Position
from sluicegate.postgres import PostgresSubscriptions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

NAME = "orders"
START = SubscriptionStart(dict.fromkeys(range(SLOTS), 0))
LOCK = slot_lock(NAME, 7)


class MovedClock(LoopClock):
    """The system's clock, moved by a test."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead

    def wall_time(self) -> float:
        return super().wall_time() + self.ahead


def moves(before: int, after: int) -> dict[int, Move]:
    return {7: Move(Position(before), Position(after))}


class Holder:
    """The process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(await self._process.stdout.readline())

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(b"go on\n")


@asynccontextmanager
async def frozen_holder(*arguments: str) -> AsyncGenerator[Holder]:
    """Start a process that takes `LOCK`, and freeze it. When resumed, it moves the slot from 0 to
    9, keeps the lock, and reports what was stored and kept.
    """
    command = (sys.executable, "-m", __name__, *arguments)
    async with child(*command, stdin=PIPE, stdout=PIPE) as process:
        holder = Holder(process)
        assert await holder.answer() == {"locked": [LOCK]}
        process.send_signal(signal.SIGSTOP)
        yield holder


async def _hold(kind: str, place: str, *more: str) -> None:
    made = SQLiteSubscriptions(place)
    mine: SQLiteSubscriptions | PostgresSubscriptions = made
    if kind == "postgres":
        mine = PostgresSubscriptions(place, schema=more[0], lease=float(more[1]))
    async with mine:
        _tell(locked=[*await mine.lock([LOCK])])
        sys.stdin.readline()
        stored = [*await mine.store(NAME, moves(0, 9))]
        _tell(stored=stored, kept=[*await mine.keep([LOCK])])


def _tell(**answer: object) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201  # the parent reads it


if __name__ == "__main__":
    asyncio.run(_hold(*sys.argv[1:]))
