"""Handlers that wait: the consumer's overhead, and the cost of a hot or a stuck key for other keys."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

from sluicegate.consumer import MemoryLog

from ..consuming import FETCH, OURS, RECIPE, consumer_of, ours, recipe, record, records, source_of
from ..harness import US_PER_ITEM, AtMost, Case, Contender, Target, name_of, placed
from ..peers.task_recipe import consume
from ..stopwatch import Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence

    from sluicegate import Message
    from sluicegate.consumer import Record, SourceRecord

    from ..harness import Turn

    Handler = Callable[[Message | SourceRecord], Awaitable[object]]
    Consume = Callable[[Sequence[Record], Handler, asyncio.Event], Coroutine[object, object, Took]]

MILLISECOND = 0.001
WAIT = 0.01
"""Seconds of a handler while another key is hot or stuck."""
MANY = 1_000
"""Number of concurrent handlers of 1 ms."""
EVEN, HOT, STUCK = "no such key", "half of the records are of one key", "one key's handler hangs"
SPECIAL = b"special"
SLOW = 25
"""Divisor of the number of records if the recipe is slow."""
STUCK_EVERY = 100


async def wait(_: object) -> None:
    """Handle a message in a millisecond."""
    await asyncio.sleep(MILLISECOND)


@contextlib.contextmanager
def prepare_waits(count: int) -> Iterator[Sequence[Contender]]:
    given = records(count)
    yield (
        Contender(OURS, ours(given, wait, concurrency=MANY, window=4 * MANY), ours=True),
        Contender(RECIPE, recipe(given, wait, concurrency=MANY)),
    )


def others_with(special_every: int, others: int) -> list[Record]:
    """Make records of even keys, with one of the special key at regular intervals."""
    keys: list[bytes] = []
    for number, each in enumerate(records(others)):
        if special_every and number % special_every == 0:
            keys.append(SPECIAL)
        keys.append(bytes(each.key))  # type: ignore[call-overload]
    return [record(offset, key) for offset, key in enumerate(keys)]


async def by_us(given: Sequence[Record], handler: Handler, done: asyncio.Event) -> Took:
    """Consume until `done`, then stop. All records fit into the window."""
    async with consumer_of(source_of(MemoryLog(given)), window=len(given)) as consumer:
        watch = Stopwatch()
        run = asyncio.create_task(consumer.run(handler))
        await done.wait()
        took = watch.read()
        consumer.stop()
        await run
    return took


async def by_hand(given: Sequence[Record], handler: Handler, done: asyncio.Event) -> Took:
    """Consume by the recipe until `done`, then stop."""
    source = source_of(MemoryLog(given))
    watch = Stopwatch()
    run = asyncio.create_task(consume(source, handler, concurrency=100, most=FETCH))
    await done.wait()
    took = watch.read()
    run.cancel()
    await asyncio.wait([run])
    return took


def _turn(way: Consume, given: Sequence[Record], others: int, *, hangs: bool) -> Turn:
    """Measure the time until all records of the other keys are handled."""

    async def turn() -> Took:
        left, done = others, asyncio.Event()

        async def handler(message: Message | SourceRecord) -> None:
            nonlocal left
            if message.key != SPECIAL:
                await asyncio.sleep(WAIT)
                left -= 1
                if not left:
                    done.set()
            elif hangs:
                await done.wait()
            else:
                await asyncio.sleep(WAIT)

        async with asyncio.timeout(120):
            return await way(given, handler, done)

    return lambda: asyncio.run(turn())


@contextlib.contextmanager
def prepare_keys(count: int) -> Iterator[Sequence[Contender]]:
    few = max(1, count // SLOW)
    place = partial(_placed, others=count)
    yield (
        place(OURS, EVEN, 0),
        place(OURS, HOT, 1),
        place(OURS, STUCK, STUCK_EVERY, hangs=True),
        place(RECIPE, EVEN, 0),
        place(RECIPE, HOT, 1, others=few),
        place(RECIPE, STUCK, STUCK_EVERY, hangs=True),
    )


def _placed(
    line: str, at: str, special_every: int, *, others: int, hangs: bool = False
) -> Contender:
    way = by_us if line == OURS else by_hand
    turn = _turn(way, others_with(special_every, others), others, hangs=hangs)
    return placed(line, at, turn, ours=line == OURS, items=others)


WAITS_CASE = Case(
    name="consumer-waits",
    title=f"Handlers that wait 1 ms, {MANY:,} concurrent",
    prepare=prepare_waits,
    items=20_000,
    quick_items=500,
    unit=US_PER_ITEM,
    peers=(RECIPE,),
    targets=(Target(OURS, RECIPE, 1.0),),
)
KEYS_CASE = Case(
    name="consumer-keys",
    title="Handlers that wait 10 ms, 100 concurrent: time per record of the other keys",
    prepare=prepare_keys,
    items=5_000,
    quick_items=100,
    unit=US_PER_ITEM,
    peers=(RECIPE,),
    targets=tuple(AtMost(name_of(OURS, at), name_of(OURS, EVEN), 1 / 0.95) for at in (HOT, STUCK)),
    along="beside them",
)
CASES = (WAITS_CASE, KEYS_CASE)
