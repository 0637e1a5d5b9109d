"""Pieces of work by name, each a turn in processor time, for any revision of the library under any
interpreter.

A workload uses only the public interface, and looks names up when it is prepared. So a missing name
in a revision or interpreter does not affect the other workloads.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tenacity

import sluicegate
from sluicegate import Batch, Batcher, Limits, RowBatch, Sink

from .feeds import (
    DEPTH,
    LINGER,
    SIZE,
    NullSink,
    add,
    add_many,
    check,
    ours,
    submit,
    submit_only,
    try_add,
)
from .peers.skeleton import Skeleton
from .stopwatch import Stopwatch, TimedTurn, Took

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (1, 10, 100, SIZE)
TENANTS = 5
KEYS = 1_000
FAILURES = 2
"""Number of failed writes before each successful one."""
IMPORTS = 3
"""Number of fresh interpreters in a turn."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A piece of work, and the number of items per turn."""

    name: str
    items: int
    prepare: Callable[[range], TimedTurn]
    ours: bool = True

    def count(self, share: float) -> int:
        """Return the number of items of a turn with this share."""
        return max(1, round(self.items * share))

    def turn(self, share: float) -> tuple[TimedTurn, int]:
        """Return a turn with this share of the items, and their number."""
        items = self.count(share)
        return self.prepare(range(items)), items


def _skeleton(size: int) -> Callable[[range], TimedTurn]:
    def prepare(items: range) -> TimedTurn:
        async def turn() -> Took:
            sink = NullSink()
            watch = Stopwatch()
            async with Skeleton[int](
                sink.write,  # type: ignore[arg-type]  # it only uses the length
                size=size,
                linger=LINGER,
                depth=DEPTH,
            ) as skeleton:
                for item in items:
                    await skeleton.add(item)
            took = watch.read()
            check(sink.count, items)
            return took

        return lambda: asyncio.run(turn())

    return prepare


def _add(size: int) -> Callable[[range], TimedTurn]:
    return lambda items: ours(add, items, size=size)


def _batcher(**settings: Callable[[int], object]) -> Callable[[range], TimedTurn]:
    """Use `add` on a batcher with these settings."""

    def prepare(items: range) -> TimedTurn:
        limits = Limits(max_items=SIZE, max_delay=LINGER, max_pending_items=DEPTH)

        async def turn() -> Took:
            sink = NullSink()
            watch = Stopwatch()
            async with Batcher(sink, limits=limits, **settings) as batcher:  # type: ignore[arg-type]
                await add(batcher, items)
            took = watch.read()
            check(sink.count, items)
            return took

        return lambda: asyncio.run(turn())

    return prepare


def _decorated(items: range) -> TimedTurn:
    def wrap(sink: Sink[int]) -> Sink[int]:
        return sluicegate.stack(
            sink,
            sluicegate.Timeout(5.0),
            sluicegate.CircuitBreaker(),
            sluicegate.Retry(),
            sluicegate.DeadLetter(_letters),
        )

    return ours(add, items, wrap=wrap)


def _letters(_: object) -> None:
    raise AssertionError("nothing failed, so nothing is buried")


class FailingError(Exception):
    """An error that is retried."""


class FailingSink:
    """A sink that fails `FAILURES` times before each successful write."""

    def __init__(self) -> None:
        self._attempts = itertools.count(1)
        self.count = 0

    async def write(self, batch: Batch[int]) -> None:
        if next(self._attempts) % (FAILURES + 1):
            raise FailingError
        self.count += len(batch)


def _retries(items: range) -> TimedTurn:
    """Send batches through `Retry` without a batcher; each fails as a whole."""
    groups = [tuple(items[start : start + SIZE]) for start in range(0, len(items), SIZE)]

    async def turn() -> Took:
        failing = FailingSink()
        sink: Sink[int] = sluicegate.stack(failing, sluicegate.Retry(backoff=tenacity.wait_none()))
        watch = Stopwatch()
        for group in groups:
            if errors := await sluicegate.send(sink, RowBatch(group)):
                raise AssertionError(f"items failed: {errors}")
        took = watch.read()
        check(failing.count, items)
        return took

    return lambda: asyncio.run(turn())


def _imports(program: str) -> Callable[[range], TimedTurn]:
    """Measure the processor time of fresh interpreters that run `program`."""
    command = [sys.executable, "-c", program]

    def prepare(items: range) -> TimedTurn:
        def turn() -> Took:
            before = _of_children()
            watch = Stopwatch()
            for _ in items:
                subprocess.run(command, check=True, timeout=60.0)
            return Took(watch.read().wall, _of_children() - before)

        return turn

    return prepare


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _all(*workloads: Workload) -> dict[str, Workload]:
    return {workload.name: workload for workload in workloads}


def skeleton_of(size: int) -> str:
    return f"skeleton, batches of {size}"


def add_of(size: int) -> str:
    return f"add, batches of {size}"


ITEMS_OF = {1: 3_000, 10: 20_000, 100: 60_000, SIZE: 200_000}
ADD = add_of(SIZE)
TRY_ADD, ADD_MANY = "try_add", "add_many, lists of 500"
SUBMIT, GATHER = f"submit, batches of {SIZE}", "submit, then gather"
FIVE_TENANTS, MANY_KEYS = f"add, {TENANTS} tenants", f"add, {KEYS:,} keys"
TENANTS_AND_KEYS = f"add, {TENANTS} tenants, {KEYS:,} keys"
DECORATED = "add, four decorators"
RETRIES = f"Retry, {SIZE} items failing twice"
BARE, IMPORT = "bare interpreter", "import sluicegate"

WORKLOADS = _all(
    *(
        workload
        for n in SIZES
        for workload in (
            Workload(skeleton_of(n), ITEMS_OF[n], _skeleton(n), ours=False),
            Workload(add_of(n), ITEMS_OF[n], _add(n)),
        )
    ),
    Workload(DECORATED, 200_000, _decorated),
    Workload(MANY_KEYS, 100_000, _batcher(key=lambda item: item % KEYS)),
    Workload(FIVE_TENANTS, 100_000, _batcher(tenant=lambda item: item % TENANTS)),
    Workload(TRY_ADD, 200_000, lambda items: ours(try_add, items, depth=max(DEPTH, len(items)))),
    Workload(ADD_MANY, 200_000, add_many),
    Workload(SUBMIT, 100_000, lambda items: ours(submit_only, items)),
    Workload(GATHER, 400_000, lambda items: ours(submit, items)),
    Workload(
        TENANTS_AND_KEYS,
        50_000,
        _batcher(tenant=lambda item: item % TENANTS, key=lambda item: item % KEYS),
    ),
    Workload(RETRIES, 100 * SIZE, _retries),
    Workload(BARE, IMPORTS, _imports("pass"), ours=False),
    Workload(IMPORT, IMPORTS, _imports("import sluicegate")),
)
