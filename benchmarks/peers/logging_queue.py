"""The standard library's way to write log records from another thread: `QueueHandler` and
`QueueListener`, with a handler that collects records and only counts them.
"""

from __future__ import annotations

import contextlib
import logging
import queue
from logging.handlers import BufferingHandler, QueueHandler, QueueListener
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class CountingHandler(BufferingHandler):
    """A handler that flushes full buffers, without a linger."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.count = 0

    def flush(self) -> None:
        self.count += len(self.buffer)
        self.buffer.clear()


@contextlib.contextmanager
def listening(target: CountingHandler) -> Iterator[Callable[[logging.LogRecord], object]]:
    """Provide a function that adds records. Leaving waits until all are counted. The queue is not
    bounded, since a full one would drop records.
    """
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    listener = QueueListener(records, target)
    listener.start()
    try:
        yield QueueHandler(records).handle
    finally:
        listener.stop()
        target.flush()


def record() -> logging.LogRecord:
    """Make a small log record."""
    return logging.makeLogRecord({"name": "bench", "levelno": logging.INFO, "msg": "an item"})
