"""How a run of a pipeline is shown: a bar on a terminal, a line for each write elsewhere."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from ._spark import context

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from penstock.spark import SparkWriteReport
    from penstock.spark.pipeline import PipelineReport

_COUNTS = ("writes", "rows", "delivered", "dead_letters", "failed", "retries")


class RunView(Protocol):
    """A way to show a run."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def show(self) -> None:
        """How far it is now."""
        ...

    def wrote(self, report: SparkWriteReport) -> None:
        """One write has ended; from the run's thread."""
        ...

    def sum_up(self, report: PipelineReport) -> None:
        """The counts of the whole run."""
        ...


class PlainRunView:
    """Lines."""

    def __init__(self) -> None:
        self._writes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def say(self, text: str) -> None:
        """Print it."""
        print(text, flush=True)

    def show(self) -> None:
        """Nothing: a write says when it has ended."""

    def wrote(self, report: SparkWriteReport) -> None:
        """One line for each write, but for empty micro-batches."""
        self._writes += 1
        if report.rows:
            self.say(f"write {self._writes}: {report}")

    def sum_up(self, report: PipelineReport) -> None:
        """The names and the numbers below each other."""
        for name in _COUNTS:
            self.say(f"{name.replace('_', ' '):>12}  {getattr(report, name):,}")


class LiveRunView(PlainRunView):
    """A bar of Spark's tasks, and a table at the end."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        super().__init__()
        self._console = Console()
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("tasks"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._bar = self._progress.add_task("Spark", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print it above the bar."""
        self._console.print(text, markup=False, highlight=False)

    def show(self) -> None:
        """Move the bar."""
        done, total = _tasks()
        self._progress.update(self._bar, completed=done, total=total or None, description="writing" if total else "Spark")

    def sum_up(self, report: PipelineReport) -> None:
        """A table."""
        from rich.table import Table

        table = Table(title=report.name)
        for name in _COUNTS:
            table.add_column(name.replace("_", " "), justify="right")
        table.add_row(*(f"{getattr(report, name):,}" for name in _COUNTS))
        self._console.print(table)


def make_view(*, plain: bool) -> RunView:
    """The view that fits where the output goes."""
    return PlainRunView() if plain or not sys.stdout.isatty() or find_spec("rich") is None else LiveRunView()


def _tasks() -> tuple[int, int]:
    """Of the stages that run: tasks that are done, and all of them."""
    running = context()
    if running is None:
        return 0, 0
    tracker = running.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
