"""The ways to add items, one after the other, for a profiler: `python -m
benchmarks.programs.hot_path ITEMS`.
"""

from __future__ import annotations

import sys

from sluicegate import CircuitBreaker, DeadLetter, Retry, Sink, Timeout, stack

from ..feeds import add, ours, submit

ROUND = 100_000
"""Number of items per batcher before the next one is opened, so that receipts do not accumulate."""


def adding(items: int) -> None:
    """Use `add`, one item at a time."""
    for _ in range(items // ROUND):
        ours(add, range(ROUND))()


def submitting(items: int) -> None:
    """Use `submit`, and await every receipt."""
    for _ in range(items // ROUND):
        ours(submit, range(ROUND))()


def adding_through_decorators(items: int) -> None:
    """Use `add`, with four decorators around the sink."""
    for _ in range(items // ROUND):
        ours(add, range(ROUND), wrap=_decorated)()


def _decorated(sink: Sink[int]) -> Sink[int]:
    return stack(sink, Timeout(5.0), CircuitBreaker(), Retry(), DeadLetter(lambda _: None))


if __name__ == "__main__":
    count = int(sys.argv[1])
    adding(count)
    adding_through_decorators(count)
    submitting(count // 2)
