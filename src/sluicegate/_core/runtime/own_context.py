"""A mark on the work of batchers, so that a batcher of log records does not log its own work.

A sink that logs its failures through a handler that feeds the same sink would cause an endless
loop. So a batcher's writes, including those in threads, and all work on the loop of a
`BlockingBatcher` run in a context with a mark.
"""

from __future__ import annotations

import contextvars
import logging

_own_work: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "sluicegate_own_work", default=False
)


def own_context() -> contextvars.Context:
    """Return a new context that contains only the mark."""
    context = contextvars.Context()
    context.run(_own_work.set, True)
    return context


class NoFeedback(logging.Filter):
    """A filter for a handler that feeds a batcher: drops the log records of batchers' own work.

    Add it to the handler: `handler.addFilter(NoFeedback())`. A logger's filter would miss the
    records of its child loggers. It drops the records of the `sluicegate` loggers, and the records
    of any logger that come from the work of any batcher in the process: from its writes, the
    threads they use, and the thread of a `BlockingBatcher`. Other handlers still receive those
    records.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a record of a batcher's own work."""
        name = record.name
        return not (_own_work.get() or name == "sluicegate" or name.startswith("sluicegate."))
