"""The driver's side of an atomic write: begin, run the tasks, publish their stages.

1. If the ledger has the epoch as published, nothing is written. The rows are counted and hashed
   nevertheless: other rows under its name are an error, not a skipped write.
2. Only the stages returned with the tasks' results are published: one of each task. Stages of other
   attempts are dropped.
3. Interrupted publishing is retried, since the epoch's row shows whether it was applied.
4. If the destination has lost staged rows, publishing again does not help. The job then runs again
   from `begin`, a few times at most.
5. The driver also opens the destination, from its description, on its own loop. So it needs access
   to it.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..._core.errors import StagesLost
from ..._core.opening import opened
from ..._core.operation import run_with_retries
from ..._core.sink import classifier_of
from ..._core.staging import check_staging, stages_of
from ..._core.transaction import Counts, check_same_rows
from ..report import SparkWriteReport
from ..task.retries import transaction_retries
from ..task.unit_task import report_skipped
from ..values.travel import description, load
from .runs import RUNS, Ran, logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..._core.sink import Sink
    from ..._core.staging import Epoch, HasStages, Stages
    from ..driver.content import Content

R = TypeVar("R")

PATIENCE = 300.0
"""Seconds for which the driver waits for an unavailable destination."""


def write_atomically(
    sink: Sink[Any], epoch: Epoch, content: Content, run: Callable[[], Ran]
) -> SparkWriteReport:
    """Publish everything that `run` has staged, or nothing. Blocks.

    Raises the errors of `run` and of the destination, and `NonDeterministicReplay` if the epoch was
    published with other rows.
    """
    destination = _Destination(description(check_staging(sink)))
    for _ in range(RUNS - 1):
        try:
            return _written(destination, epoch, content, run)
        except StagesLost as lost:
            logger.warning(
                "%s: nothing is published, and the job runs again from the beginning: %s",
                epoch.unit.name,
                lost,
            )
    return _written(destination, epoch, content, run)


def _written(
    destination: _Destination, epoch: Epoch, content: Content, run: Callable[[], Ran]
) -> SparkWriteReport:
    begun = destination.call(lambda there: there.begin(epoch))
    before = begun.before
    if before is not None:
        check_same_rows(epoch.unit, before.counts, content.counted())
        return SparkWriteReport((report_skipped(0, before, rows=before.counts.rows),))
    try:
        ran = run()
        report = ran.report
        counts = Counts(
            rows=report.rows,
            delivered=sum(unit.delivered for unit in report.units),
            duplicate=sum(unit.duplicate for unit in report.units),
            failed=report.failed,
            content=ran.content if content.columns else None,
            content_of=content.text,
        )
        before = destination.call(
            lambda there: there.publish(epoch, ran.stages, counts, begun.mark)
        )
    except BaseException:
        with suppress(Exception):  # the next write collects the rest
            destination.call(lambda there: there.discard(epoch), is_tried_again=False)
        raise
    if before is None:
        return report
    check_same_rows(epoch.unit, before.counts, counts)
    return SparkWriteReport((report_skipped(0, before, rows=report.rows),))


class _Destination:
    """A destination on the driver, opened for each call on a separate thread.

    The caller may have a running loop.
    """

    def __init__(self, described: bytes) -> None:
        self._described = described

    def call(self, work: Callable[[Stages], Awaitable[R]], *, is_tried_again: bool = True) -> R:
        """Call `work` with the open destination; blocks."""
        with ThreadPoolExecutor(1, thread_name_prefix="sluicegate driver") as thread:
            return thread.submit(
                asyncio.run, self._tries(work, PATIENCE if is_tried_again else 0.0)
            ).result()

    async def _tries(self, work: Callable[[Stages], Awaitable[R]], patience: float) -> R:
        destination = cast("HasStages", load(self._described))

        async def opened_for_it() -> R:
            async with opened(destination):
                return await work(stages_of(destination))

        return await run_with_retries(
            opened_for_it, transaction_retries(classifier_of(destination), patience)
        )
