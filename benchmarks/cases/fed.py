"""The cost of a batcher for its source: groups of rows, keys, and a bound on bytes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from sluicegate import Batcher, Limits

from ..feeds import DEPTH, LINGER, SIZE, check
from ..harness import NS_PER_ITEM, AtMost, Case, Contender
from ..stopwatch import Stopwatch, Took
from .keyed import KEYS, SlowSink

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..harness import Turn

GROUP = 250
WRITE = 0.005
"""Seconds of a write to the slow destination."""
WORKERS = 4
BOUND = 1 << 30

ONE_BY_ONE = "add"
MEASURED = "add, bytes bounded"
GROUPS = f"groups of {GROUP}"
KEYED = f"{KEYS:,} keys"
SAFE = f"{KEYS:,} keys, safe for prefixes"


def _key(item: int) -> int:
    return item * 7919 % KEYS


def _size(_item: int) -> int:
    return 100


def _turn(
    items: Sequence[int],
    *,
    group: int = GROUP,
    bounded: bool = False,
    keyed: bool = False,
    prefix_safe: bool = False,
    seconds: float = 0.0,
) -> Turn:
    given: dict[str, Any] = {"key": _key} if keyed else {}
    if bounded:
        given["size_of"] = _size
    limits = Limits(
        max_items=SIZE,
        max_delay=LINGER,
        max_pending_items=DEPTH,
        max_pending_bytes=BOUND if bounded else None,
        workers=WORKERS if keyed else 1,
    )

    async def turn() -> Took:
        sink = SlowSink(seconds, prefix_safe=prefix_safe)
        watch = Stopwatch()
        async with Batcher(sink, limits=limits, **given) as batcher:
            if group == 1:
                for item in items:
                    await batcher.add(item)
            else:
                for start in range(0, len(items), group):
                    await batcher.add_many(items[start : start + group])
        took = watch.read()
        check(sink.count, items)
        return took

    return lambda: asyncio.run(turn())


@contextlib.contextmanager
def prepare_bytes(count: int) -> Iterator[Sequence[Contender]]:
    items = range(count)
    yield (
        Contender(ONE_BY_ONE, _turn(items, group=1), ours=True),
        Contender(MEASURED, _turn(items, group=1, bounded=True), ours=True),
        Contender(GROUPS, _turn(items), ours=True),
        Contender(f"{GROUPS}, bytes bounded", _turn(items, bounded=True), ours=True),
    )


@contextlib.contextmanager
def prepare_keys(count: int) -> Iterator[Sequence[Contender]]:
    items = range(count)
    slow = f", writes of {WRITE * 1000:g} ms"
    yield (
        Contender(GROUPS, _turn(items), ours=True),
        Contender(SAFE, _turn(items, keyed=True, prefix_safe=True), ours=True),
        Contender(KEYED, _turn(items, keyed=True), ours=True),
        Contender(
            SAFE + slow, _turn(items, keyed=True, prefix_safe=True, seconds=WRITE), ours=True
        ),
        Contender(KEYED + slow, _turn(items, keyed=True, seconds=WRITE), ours=True),
    )


BYTES_CASE = Case(
    name="bounded-bytes",
    title=f"A limit on pending bytes: accept items and drain them in batches of {SIZE}",
    prepare=prepare_bytes,
    items=200_000,
    quick_items=2_000,
    unit=NS_PER_ITEM,
    peers=(ONE_BY_ONE,),
    targets=(AtMost(MEASURED, ONE_BY_ONE, 4.0),),
)
KEYS_CASE = Case(
    name="keyed-groups",
    title=f"Groups of {GROUP} items with keys, drained in batches of {SIZE}",
    prepare=prepare_keys,
    items=100_000,
    quick_items=2_000,
    unit=NS_PER_ITEM,
    peers=(GROUPS,),
    targets=(AtMost(SAFE, GROUPS, 6.0),),
)
CASES = (BYTES_CASE, KEYS_CASE)
