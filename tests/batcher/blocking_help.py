"""A gated sink for tests of `BlockingBatcher`, and a batcher that is full."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sluicegate import Batch, BlockingBatcher, Limits

PATIENCE = 20.0
"""Seconds after which a test that hangs fails."""


class Plain:
    """A plain function as a sink, which runs in its own thread; writes wait while the gate is
    shut.
    """

    def __init__(self, *, shut: bool = False, error: Exception | None = None) -> None:
        self.gate = threading.Event()
        self.called = threading.Event()
        self.items: list[Any] = []
        self.batches: list[tuple[Any, ...]] = []
        self.error = error
        if not shut:
            self.gate.set()

    def __call__(self, batch: Batch[Any]) -> None:
        self.called.set()
        assert self.gate.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        self.items.extend(batch)
        self.batches.append(tuple(batch))


@contextmanager
def full(sink: Plain, **options: Any) -> Iterator[BlockingBatcher[Any]]:
    """A full batcher, with 2 items at the destination and 2 behind them."""
    with BlockingBatcher(
        sink, limits=Limits(max_items=2, max_pending_items=4, max_delay=60.0), **options
    ) as batcher:
        batcher.add_many([0, 1])
        assert sink.called.wait(PATIENCE)
        batcher.add_many([2, 3])
        try:
            yield batcher
        finally:
            sink.gate.set()


def waits(batcher: BlockingBatcher[Any], producers: int) -> None:
    """Return when this many producers wait for capacity; each check is a round trip to the loop."""
    while batcher.stats().waiting_producers < producers:
        pass
