"""Keeping what a batcher's own work logs out of the batcher that carries logs.

A sink that logs each of its failures, into a handler whose records go to that very sink, never
comes to an end. So whatever runs on a batcher's behalf runs in a context that says so: the writes,
in threads too, and everything on the loop of a `BlockingBatcher`.
"""

from __future__ import annotations

import contextvars
import logging

_own_work: contextvars.ContextVar[bool] = contextvars.ContextVar("penstock_own_work", default=False)


def own_context() -> contextvars.Context:
    """A new context, empty but for the mark of a batcher's own work."""
    context = contextvars.Context()
    context.run(_own_work.set, True)
    return context


class NoFeedback(logging.Filter):
    """Keeps Penstock's own records, and all that are made while a batcher writes, from being
    batched themselves.

    Add it to the handler that gives records to a batcher: `handler.addFilter(NoFeedback())`. At a
    logger it would miss the records of the loggers below. It stops what the `penstock` loggers
    make, and whatever any logger makes on behalf of a batcher (any batcher of the process): in its
    writes, the threads they use, and the thread of a `BlockingBatcher`. Other handlers still get
    those records.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a record that has to stay out."""
        return not (
            _own_work.get() or record.name == "penstock" or record.name.startswith("penstock.")
        )
