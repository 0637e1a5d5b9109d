"""The cost of adding an item from a thread, with one thread and with four, to a sink that does
nothing.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from sluicegate import Batch, BlockingBatcher, Limits

from ..harness import NS_PER_ITEM, Case, Contender, Target
from ..peers import logging_queue
from ..peers.thread_recipe import ThreadRecipe
from ..stopwatch import Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..harness import Turn

SIZE = 500
LINGER = 0.2
DEPTH = 10_000
"""Maximum number of waiting items: the default of the ledger, and the recipe's queue."""


class Counted:
    """A sink that counts items, and keeps none."""

    def __init__(self) -> None:
        self.count = 0

    def take(self, batch: Sequence[int]) -> None:
        self.count += len(batch)

    async def write(self, batch: Batch[int]) -> None:
        self.take(batch)


def _feed(put: Callable[[int], object], items: Sequence[int], threads: int) -> None:
    """Let each thread add its share."""

    def work(start: int) -> None:
        for item in items[start::threads]:
            put(item)

    workers = [threading.Thread(target=work, args=(start,)) for start in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _ours(items: Sequence[int], threads: int) -> Turn:
    def turn() -> Took:
        sink = Counted()
        watch = Stopwatch()
        with BlockingBatcher(
            sink, limits=Limits(max_items=SIZE, max_delay=LINGER, max_pending_items=DEPTH)
        ) as batcher:
            _feed(batcher.add, items, threads)
        return _checked(sink, items, watch)

    return turn


def _recipe(items: Sequence[int], threads: int) -> Turn:
    def turn() -> Took:
        sink = Counted()
        watch = Stopwatch()
        with ThreadRecipe(sink.take, size=SIZE, linger=LINGER, depth=DEPTH) as queue:
            _feed(queue.put, items, threads)
        return _checked(sink, items, watch)

    return turn


def _logging(items: Sequence[int], threads: int) -> Turn:
    """Use a record that is made once, since making it is the logger's work."""

    def turn() -> Took:
        target = logging_queue.CountingHandler(SIZE)
        record = logging_queue.record()
        watch = Stopwatch()
        with logging_queue.listening(target) as handle:
            _feed(lambda _: handle(record), items, threads)
        return _checked(target, items, watch)

    return turn


def _checked(
    sink: Counted | logging_queue.CountingHandler, items: Sequence[int], watch: Stopwatch
) -> Took:
    took = watch.read()
    if sink.count != len(items):
        raise AssertionError(f"{sink.count} of {len(items)} items arrived")
    return took


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    items = list(range(count))
    yield (
        Contender("add, 1 thread", _ours(items, 1), ours=True),
        Contender("queue.Queue, 1 thread", _recipe(items, 1)),
        Contender("QueueHandler, 1 thread", _logging(items, 1)),
        Contender("add, 4 threads", _ours(items, 4), ours=True),
        Contender("queue.Queue, 4 threads", _recipe(items, 4)),
        Contender("QueueHandler, 4 threads", _logging(items, 4)),
    )


CASE = Case(
    name="threads",
    title="Accept items from threads and drain them in batches of 500",
    prepare=prepare,
    items=100_000,
    quick_items=2_000,
    unit=NS_PER_ITEM,
    peers=("queue.Queue, 1 thread", "queue.Queue, 4 threads"),
    targets=(
        Target("add, 1 thread", "queue.Queue, 1 thread", 2),
        Target("add, 4 threads", "queue.Queue, 4 threads", 2),
    ),
)
