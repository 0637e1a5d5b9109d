"""The output of a pipeline's run: a line per write, and a table of counts at the end.

The write itself draws the progress bar.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .. import SparkWriteReport
    from ..pipeline import PipelineReport

_COUNTS = ("writes", "rows", "delivered", "duplicate", "dead_letters", "failed", "retries")


class RunView:
    """Prints lines and a table; without a terminal or with `plain`, only lines."""

    def __init__(self, *, plain: bool) -> None:
        self._is_plain = plain or not sys.stdout.isatty() or find_spec("rich") is None
        self._writes = 0

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)

    def wrote(self, report: SparkWriteReport) -> None:
        """Print a line for a finished write, unless it was empty. Called in the run's thread."""
        self._writes += 1
        if report.rows:
            self.say(f"write {self._writes}: {report}")

    def sum_up(self, report: PipelineReport) -> None:
        """Print the counts of the whole run."""
        counts = {name.replace("_", " "): f"{getattr(report, name):,}" for name in _COUNTS}
        if self._is_plain:
            for name, count in counts.items():
                self.say(f"{name:>12}  {count}")
            return
        from rich.console import Console
        from rich.table import Table

        table = Table(*counts, title=report.name)
        table.add_row(*counts.values())
        Console().print(table)
