"""The batcher's own log lines: on by default, one per event that a person should hear of."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .._core.batch import Batch
    from .adaptive import Setting
    from .report import ShutdownReport

logger = logging.getLogger("penstock.batcher")


def failed_flush(batch: Batch[Any], errors: Mapping[int, BaseException]) -> None:
    """A flush has ended with failed items: say how many, and one error of each kind."""
    kinds = {(type(error), str(error)): error for error in errors.values()}
    first = next(iter(kinds.values()))
    logger.error(
        "batcher %r: %d of %d items failed (batch %s, reason %s): %r%s",
        batch.name,
        len(errors),
        len(batch),
        batch.id,
        batch.reason.value,
        first,
        f" and {len(kinds) - 1} other errors" if len(kinds) > 1 else "",
    )


def last_resort_failed(batch: Batch[Any], errors: Mapping[int, BaseException]) -> None:
    """The last resort did not take everything."""
    first = next(iter(errors.values()))
    logger.error(
        "batcher %r: the last resort did not take %d of %d items, which stay unsent: %r", batch.name, len(errors), len(batch), first
    )


def shutdown(report: ShutdownReport[Any]) -> None:
    """A shutdown has ended: its tally."""
    logger.log(logging.INFO if report.complete else logging.ERROR, "%s", report)


def broken(name: str, error: BaseException) -> None:
    """A batcher has stopped for good."""
    logger.critical("batcher %r is broken and takes no more items: %r", name, error, exc_info=error)


def left_behind(name: str, writes: int) -> None:
    """Writes ignored their cancellation."""
    logger.error("batcher %r: %d writes ignored their cancellation and are still running", name, writes)


def close_failed(name: str, error: BaseException) -> None:
    """The sink could not be closed."""
    logger.error("batcher %r: closing the sink failed: %r", name, error, exc_info=error)


def keys_failed(name: str, count: int) -> None:
    """Items failed because an earlier one of their key had."""
    logger.error("batcher %r: %d items are rejected behind one of their key that failed", name, count)


def adapted(name: str, before: Setting, after: Setting) -> None:
    """An adaptive batcher has another setting."""
    logger.debug("batcher %r adapts: workers %d -> %d, max_items %d -> %d", name, before[0], after[0], before[1], after[1])


def dropped(message: str) -> None:
    """A batcher was collected as garbage with items inside."""
    logger.warning("%s", message)
