"""The batcher's own log lines: on by default, one per event that matters to an operator.

1. A line contains no item's values: errors are formatted by `for_log`.
2. An exception that neither the stack's classifiers nor Sluicegate's own ones list is probably a
   bug. Its kind (type and place) is logged with its traceback at its first occurrence, even if it
   is retried or dead-lettered.
3. An item that a sink cannot convert is no bug: its own error says what is wrong with it.
4. No function here raises: filters and handlers of the program may raise, but do not end a batcher.

A batcher of log records must not log its own work: a sink that logs its failures through a handler
that feeds the same sink would cause an endless loop. So a batcher's writes, including those in
threads, and all work on the loop of a `BlockingBatcher` run in a context with a mark.
"""

from __future__ import annotations

import contextvars
import logging
from typing import TYPE_CHECKING, Any, cast

from .._core.classify import classified
from .._core.errors import ErrorClass, PermanentError, SinkError, StoppedError
from .._core.logs import for_log, log_safely
from .._core.sink import classifier_of, walk
from .._core.text import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .._core.batch import Batch
    from .adaptive import Setting
    from .report import ShutdownReport


logger = logging.getLogger("sluicegate.batcher")

MOST_KINDS = 100
"""Maximum kinds of unlisted exceptions that one batcher logs with their traceback."""

_BUG = "batcher %r: an unlisted exception in a write, probably a bug: %s (%s)"
Kind = tuple[str, str, str, int]


def failed_flush(batch: Batch[Any], errors: Mapping[int, BaseException]) -> None:
    """Log the number of failed items of a flush, and their first error.

    At level `DEBUG` if a stop returns all of them: the shutdown's own line counts those.
    """
    is_stop = all(isinstance(error, StoppedError) for error in errors.values())
    distinct = {id(error): error for error in errors.values()}.values()
    kinds = {(id(type(error)), text_of(error)): error for error in distinct}
    first = next(iter(kinds.values()))
    log_safely(
        logger,
        logging.DEBUG if is_stop else logging.ERROR,
        "batcher %r: %d of %d items failed (batch %s, reason %s): %s%s",
        batch.name,
        len(errors),
        len(batch),
        batch.id,
        batch.reason.value,
        for_log(first),
        f" and {len(kinds) - 1} other errors" if len(kinds) > 1 else "",
    )


def last_resort_failed(batch: Batch[Any], errors: Mapping[int, BaseException]) -> None:
    """Log that the last resort did not take all items."""
    first = next(iter(errors.values()))
    message = "batcher %r: the last resort did not take %d of %d items, which stay unsent: %s"
    log_safely(logger, logging.ERROR, message, batch.name, len(errors), len(batch), for_log(first))


def shutdown(report: ShutdownReport[Any]) -> None:
    """Log the report of a shutdown."""
    log_safely(logger, logging.INFO if report.complete else logging.ERROR, "%s", report)


def broken(name: str, error: BaseException) -> None:
    """Log that a batcher has stopped for good."""
    message = "batcher %r is broken and takes no more items: %s"
    log_safely(logger, logging.CRITICAL, message, name, for_log(error), error=_traced(error))


def not_cleared(name: str, error: BaseException) -> None:
    """Log a failure while a batcher stops for good."""
    message = "batcher %r: clearing up after its failure failed: %s"
    log_safely(logger, logging.ERROR, message, name, for_log(error), error=_traced(error))


def left_behind(name: str, writes: int) -> None:
    """Log writes that ignored their cancellation."""
    message = "batcher %r: %d writes ignored their cancellation and are still running"
    log_safely(logger, logging.ERROR, message, name, writes)


def close_failed(name: str, error: BaseException) -> None:
    """Log that the sink could not be closed."""
    message = "batcher %r: closing the sink failed: %s"
    log_safely(logger, logging.ERROR, message, name, for_log(error), error=_traced(error))


def not_accepted(name: str, error: BaseException) -> None:
    """Log that an item was dropped whose producer can no longer get the error."""
    message = "batcher %r: an item was dropped, since it cannot be accepted: %s"
    log_safely(logger, logging.ERROR, message, name, for_log(error), error=_traced(error))


def keys_failed(name: str, count: int) -> None:
    """Log items that were rejected because an earlier one of their key failed."""
    message = "batcher %r: %d items rejected: an earlier item of their key failed for good"
    log_safely(logger, logging.ERROR, message, name, count)


def adapted(name: str, before: Setting, after: Setting) -> None:
    """Log the new setting of an adaptive batcher."""
    message = "batcher %r adapts: workers %d -> %d, max_items %d -> %d"
    workers, items = zip(before, after, strict=True)
    log_safely(logger, logging.DEBUG, message, name, *workers, *items)


def dropped(message: str) -> None:
    """Log that a batcher with pending items was garbage-collected."""
    log_safely(logger, logging.WARNING, "%s", message)


class Unlisted:
    """The unlisted exceptions of one batcher: each kind is logged once, with its traceback, at most
    `MOST_KINDS` of them.

    An exception is unlisted if no `classify` in the stack knows it, and it is neither one of
    Sluicegate's classes nor one of the network's. The cause of one of Sluicegate's errors also
    counts if it is one of Python's own exceptions, as raised by a task group of the sink, unless
    the error is permanent.
    """

    def __init__(self, name: str, sink: object) -> None:
        self._name = name
        self._classifiers = [classifier_of(part) for part in walk(sink)]
        self._kinds: set[Kind] = set()

    def look_at(self, errors: Iterable[BaseException]) -> None:
        """Log a write's errors that are unlisted and of a new kind."""
        for error in {id(error): error for error in errors}.values():
            found, cause = error, error.__cause__
            if isinstance(error, SinkError) and cause is not None and _is_pythons_own(cause):
                if isinstance(error, PermanentError):
                    continue
                found = cause
            if (kind := _kind(found)) not in self._kinds and self._is_unlisted(found):
                self._tell(kind, found)

    def _is_unlisted(self, error: BaseException) -> bool:
        if _is_a_servers(error):
            return False
        try:
            return classified(error, *self._classifiers) is ErrorClass.UNLISTED
        except Exception:  # a classifier that raises lists nothing; a retry reports its error
            return classified(error) is ErrorClass.UNLISTED

    def _tell(self, kind: Kind, error: BaseException) -> None:
        if len(self._kinds) >= MOST_KINDS:
            return
        self._kinds.add(kind)
        is_last = len(self._kinds) >= MOST_KINDS
        rest = "further kinds are not logged" if is_last else "it is not logged again"
        log_safely(logger, logging.ERROR, _BUG, self._name, for_log(error), rest, error=error)


def _leaf(error: BaseException) -> BaseException:
    """Return the first error of a group: all groups are raised in one place."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    errors = cast("tuple[BaseException, ...]", error.exceptions)  # pyright: ignore[reportUnknownMemberType]  # of any type
    return _leaf(errors[0])


def _kind(raised: BaseException) -> Kind:
    error = _leaf(raised)
    kind, trace = type(error), error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return kind.__module__, kind.__qualname__, "", 0
    return kind.__module__, kind.__qualname__, trace.tb_frame.f_code.co_filename, trace.tb_lineno


def _is_pythons_own(error: BaseException) -> bool:
    return type(error).__module__ == "builtins" and not isinstance(error, OSError)


def _is_a_servers(error: BaseException) -> bool:
    """Return whether it has a server's code: its message, shown by a traceback, may quote a row."""
    try:
        return isinstance(getattr(error, "sqlstate", None), str)
    except Exception:
        return False


def _traced(error: BaseException) -> BaseException | None:
    """Return the error if its traceback should be shown, as for an unlisted error."""
    return error if not _is_a_servers(error) and classified(error) is ErrorClass.UNLISTED else None


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
