"""A progress bar of a running write, in a terminal or a notebook.

1. Tasks are counted by Spark's status tracker, and rows by an accumulator, which is updated when a
   task ends. A task that Spark runs again is counted again; the report has exact counts.
2. The bar is shown on standard error if that is a terminal, in a notebook, or on request. There is
   no bar elsewhere, or on Spark Connect, which has neither tracker nor accumulators.
3. Jobs are identified by their group. A group set by the caller is kept, without its older jobs.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.accumulators import AccumulatorParam

from .._core.extras import need

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

EVERY = 0.2
"""Seconds between two updates."""
_GROUP = "spark.jobGroup.id"
Figures = tuple[int, int]
"""Counts of rows and of dead letters."""


class _Sum(AccumulatorParam[Figures]):
    def zero(self, value: Figures) -> Figures:
        return 0, 0

    def addInPlace(self, value1: Figures, value2: Figures) -> Figures:  # noqa: N802  # pyspark's name
        return value1[0] + value2[0], value1[1] + value2[1]


class RunningWrite:
    """The progress of a running write."""

    def __init__(self, context: SparkContext, group: str) -> None:
        self.done: Any = context.accumulator((0, 0), _Sum())
        """The accumulator to which each unit adds its rows and its dead letters."""
        self._tracker = context.statusTracker()
        self._group = group
        self._before = set(self._tracker.getJobIdsForGroup(group))

    def tasks(self) -> tuple[int, int]:
        """The numbers of ended tasks and of all tasks."""
        ended = total = 0
        for job in set(self._tracker.getJobIdsForGroup(self._group)) - self._before:
            info = self._tracker.getJobInfo(job)
            stages = [
                self._tracker.getStageInfo(stage)
                for stage in (info.stageIds if info is not None else ())
            ]
            ended += sum(stage.numCompletedTasks for stage in stages if stage is not None)
            total += sum(stage.numTasks for stage in stages if stage is not None)
        return ended, total


def context_of(session: SparkSession) -> SparkContext | None:
    """Return the session's context, or `None` on Spark Connect."""
    try:
        return session.sparkContext
    except Exception:  # the error differs between versions
        return None


@contextmanager
def show_progress(session: SparkSession, show: bool | None) -> Iterator[RunningWrite | None]:
    """Show the progress of the write inside; yields `None` if no bar is shown."""
    context = None if show is False or (show is None and not _is_seen()) else context_of(session)
    if context is None:
        yield None
        return
    theirs = context.getLocalProperty(_GROUP)
    group = theirs or f"sluicegate-{uuid4().hex}"
    context.setLocalProperty(_GROUP, group)
    write = RunningWrite(context, group)
    over = threading.Event()
    try:
        with _bar() as bar:
            showing = threading.Thread(
                target=_keep_showing,
                args=(write, bar, over),
                name="sluicegate progress",
                daemon=True,
            )
            showing.start()
            try:
                yield write
            finally:
                over.set()
                showing.join()
                _show(write, bar)
    finally:
        context.setLocalProperty(_GROUP, theirs)  # type: ignore[arg-type]  # `None` removes it


def _is_seen() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def _bar() -> Any:
    need("rich", "spark", "progress=True")
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    told = (
        "{task.fields[ended]}/{task.fields[of]} tasks, {task.fields[rows]:,} rows, "
        "{task.fields[rate]:,.0f} rows/s, {task.fields[dead]:,} dead letters"
    )
    return Progress(
        TextColumn("writing"),
        BarColumn(),
        TextColumn(told),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )


def _keep_showing(write: RunningWrite, bar: Any, over: threading.Event) -> None:
    while not over.wait(EVERY):
        _show(write, bar)


def _show(write: RunningWrite, bar: Any) -> None:
    (ended, total), (rows, dead) = write.tasks(), write.done.value
    if not bar.tasks:
        bar.add_task("", total=None, ended=0, of=0, rows=0, rate=0.0, dead=0)
    seconds = bar.tasks[0].elapsed or 0.0
    bar.update(
        bar.tasks[0].id,
        completed=ended,
        total=total or None,
        ended=ended,
        of=total,
        rows=rows,
        dead=dead,
        rate=rows / max(seconds, EVERY),
    )
