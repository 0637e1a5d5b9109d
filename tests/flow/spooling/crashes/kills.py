"""A batcher with a spool, in forked processes that are killed.

`kills.py FOLDER random KILLS SEED DURABILITY` kills each process at a random moment under load.
`kills.py FOLDER write|answer NTH...` kills each process in the middle of its nth write, or between
the answer to it and the settlement.

A process reports by lines in a pipe, which outlives it: `+` an item whose `add` or `deliver` has
returned, `=` items that are at the destination, `~` items of a write that has failed after it stored
them, `!` a wrong value.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from select import select
from typing import TYPE_CHECKING, Any

from sluicegate import Backoff, Batcher, Limits, Retry, TransientError
from sluicegate.flow import Spool

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from sluicegate import Batch

KEYS = 8
WORKERS, MOST = 4, 10
LIMITS = Limits(max_items=MOST, max_delay=0.001, workers=WORKERS)
LIFE = 0.06
"""The mean life in seconds of every other process, which may be killed while it opens the spool."""
LINES = 60
"""The most lines of the others before they are killed."""
GENERATION = 1_000_000
"""Each process numbers its items from a multiple of this."""


def item_of(key: int, n: int) -> dict[str, Any]:
    """An item, whose size depends on its number."""
    return {"key": key, "n": n, "text": "é" * (n * 37 % 900)}


def is_down(chance: float) -> bool:
    """Whether the destination is down: for a third of each period."""
    return (time.monotonic() + chance) % 0.03 < 0.01


class Destination:
    """Goes up and down, and may fail after it has stored a part of a batch."""

    def __init__(self, tell: Callable[..., None], chance: random.Random) -> None:
        self._tell = tell
        self._chance = chance
        self._phase = chance.random()

    async def write(self, batch: Batch[Any]) -> None:
        """Store a batch in parts."""
        names = [(item["key"], item["n"]) for item in batch]
        if [*batch] != [item_of(*name) for name in names]:
            self._tell("!", batch)
        stored = self._chance.randrange(1, MOST)
        if is_down(self._phase):
            if self._chance.random() < 0.5:
                self._tell("~", names[:stored])
            raise TransientError("down")
        self._tell("=", names[:stored])
        await asyncio.sleep(0)  # others write meanwhile
        if names[stored:]:
            self._tell("=", names[stored:])


async def produce(batcher: Batcher[Any], tell: Callable[..., None], key: int, first: int) -> None:
    """Add items of one key without end."""
    for n in range(first, first + GENERATION):
        await (batcher.deliver if n % 3 else batcher.add)(item_of(key, n))
        tell("+", [(key, n)])


async def run(
    folder: Path,
    tell: Callable[..., None],
    chance: random.Random,
    first: int | None,
    durability: Any,
) -> None:
    """Write items under load, or only send what is left."""
    sink = Retry(attempts=100_000, backoff=Backoff(base=0.001, longest=0.005))(
        Destination(tell, chance)
    )
    spool = Spool(folder, segment_bytes=1 << 16, max_items=1000, durability=durability)
    async with (
        Batcher(
            sink, spool=spool, key=lambda item: item["key"], limits=LIMITS, shutdown_deadline=60
        ) as batcher,
        asyncio.TaskGroup() as group,
    ):
        if first is not None:
            for key in range(KEYS):
                group.create_task(produce(batcher, tell, key, first))
    assert batcher.stats().state == "closed"


def tell(file: int, *line: object) -> None:
    """Report a line, which the pipe has as a whole or not at all."""
    os.write(file, (json.dumps(line) + "\n").encode())


class Forked:
    """A process that runs a coroutine and reports by lines."""

    def __init__(self, work: Callable[[Callable[..., None]], Coroutine[Any, Any, None]]) -> None:
        self._out, told = os.pipe()
        self._lines: list[bytes] = []
        self._left = b""
        self._pid = os.fork()
        if not self._pid:
            os.close(self._out)
            code = 1
            try:
                asyncio.run(work(partial(tell, told)))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(told)

    def lines(self, until: float | None = None) -> Iterator[Any]:
        """Yield the lines until this moment, or until the process has ended."""
        while True:
            while self._lines:
                yield json.loads(self._lines.pop(0))
            seconds = None if until is None else max(0.0, until - time.monotonic())
            if not select([self._out], [], [], seconds)[0]:
                return
            found = os.read(self._out, 1 << 16)
            if not found:
                return
            *self._lines, self._left = (self._left + found).split(b"\n")

    def kill(self) -> Iterator[Any]:
        """Kill it; yield the rest of its lines."""
        os.kill(self._pid, signal.SIGKILL)
        yield from self.lines()
        self.end(signal.SIGKILL)

    def end(self, how: int = 0) -> None:
        """Check how it has ended."""
        _, status = os.waitpid(self._pid, 0)
        assert status == how, f"ended with status {status}"
        os.close(self._out)


@dataclass
class Seen:
    """The reports of all processes."""

    reported: set[tuple[int, int]] = field(default_factory=set)
    arrived: set[tuple[int, int]] = field(default_factory=set)
    tried: set[tuple[int, int]] = field(default_factory=set)
    """Items of failed writes, which may be written again by the same process."""
    last: Counter[int] = field(default_factory=Counter)
    """The number of the last item of each key, by first arrivals."""
    repeats: int = 0

    def hear(self, lines: Iterator[Any]) -> None:
        """Note the lines of one process. No item arrives twice after a write without an error."""
        here: set[tuple[int, int]] = set()
        repeats = 0
        for kind, named in lines:
            assert kind != "!", f"a wrong value: {named}"
            for key, n in named:
                if kind == "+":
                    self.reported.add((key, n))
                    continue
                if (key, n) not in self.arrived and (key, n) not in self.tried:
                    assert n > self.last[key], f"{n} of key {key} after {self.last[key]}"
                    self.last[key] = n
                if kind == "~":
                    self.tried.add((key, n))
                    continue
                assert (key, n) not in here, f"{n} of key {key} twice in one process"
                here.add((key, n))
                repeats += (key, n) in self.arrived
                self.arrived.add((key, n))
        assert repeats <= WORKERS * MOST, "more than the batches in flight at the kill"
        self.repeats += repeats


def kill_at_random(folder: Path, kills: int, seed: int, durability: str) -> Seen:
    """Kill processes one after another, and let the last one send what is left."""
    chance = random.Random(seed)
    seen = Seen()

    def forked(first: int | None) -> Forked:
        own = random.Random(chance.random())
        return Forked(lambda tell: run(folder, tell, own, first, durability))

    for generation in range(kills):
        process = forked((generation + 1) * GENERATION)
        if generation % 2:
            lines = process.lines(time.monotonic() + chance.expovariate(1 / LIFE))
        else:
            lines = islice(process.lines(), chance.randrange(LINES))
        seen.hear(chain(lines, process.kill()))
    process = forked(None)
    seen.hear(process.lines())
    process.end()
    lost = seen.reported - seen.arrived
    assert not lost, f"{len(lost)} of {len(seen.reported)} items lost: {sorted(lost)[:20]}"
    return seen


class Asked:
    """A destination with idempotency keys: reports each request, and kills the process at the nth."""

    def __init__(self, tell: Callable[..., None], moment: str, nth: int, unanswered: int) -> None:
        self._tell = tell
        self._moment = moment
        self._left = nth
        self._unanswered = unanswered
        self.begins = asyncio.Event()

    async def write(self, batch: Batch[Any]) -> None:
        """Report the request, and answer it unless it is one of the last before the kill."""
        await self.begins.wait()
        self._tell(batch.write_key, [(item["key"], item["n"]) for item in batch])
        self._left -= 1
        if not self._left and self._moment == "answer":
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGKILL)
        elif not self._left:
            os.kill(os.getpid(), signal.SIGKILL)
        elif 0 < self._left <= self._unanswered:
            await asyncio.Future()


async def ask(folder: Path, sink: Asked, count: int) -> None:
    """Add items of many keys, and send everything."""
    async with Batcher(
        sink,
        spool=Spool(folder),
        key=lambda item: item["key"],
        limits=Limits(max_items=5, max_delay=0.001, workers=WORKERS),
    ) as batcher:
        if count:
            await batcher.add_many([item_of(n % 30, n) for n in range(count)])
        sink.begins.set()


def kill_in_requests(folder: Path, moment: str, nths: Sequence[int]) -> int:
    """Kill the first process within its nth request, while others are in progress, and the next
    ones at theirs, which repeat those. Return the number of requests that were repeated.
    """
    answers: dict[str, Any] = {}
    interrupted: list[Any] = []
    repeats = 0
    for nth in (*nths, 0):
        is_first = not answers

        async def work(tell: Callable[..., None], nth: int = nth, first: bool = is_first) -> None:
            await ask(folder, Asked(tell, moment, nth, (WORKERS - 1) * first), 90 * first)

        process = Forked(work)
        requests = [*process.lines()]
        process.end(signal.SIGKILL if nth else 0)
        again = min(len(interrupted), len(requests))
        assert requests[:again] == interrupted[:again], (requests[:again], interrupted)
        for key, items in requests:
            assert answers.setdefault(key, items) == items
        interrupted = requests[-WORKERS:] if is_first else interrupted[nth - 1 :]
        repeats += again
    rows = Counter((key, n) for items in answers.values() for key, n in items)
    assert rows == Counter((n % 30, n) for n in range(90)), rows
    return repeats


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if sys.argv[2] == "random":
        seen = kill_at_random(folder, int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
        told = {"reported": len(seen.reported), "repeats": seen.repeats}
    else:
        told = {"repeats": kill_in_requests(folder, sys.argv[2], [*map(int, sys.argv[3:])])}
    sys.stdout.write(json.dumps(told) + "\n")
