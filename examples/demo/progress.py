"""The demo's progress: a live display on a terminal, a line per second elsewhere."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sluicegate import Observer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sluicegate import Batch, Batcher

    from .database import Database

EVERY = 0.2
RECENT_FLUSHES = 500
RECENT_SECONDS = 1.0


class FlushTimes(Observer):
    """Durations of the latest flushes."""

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=RECENT_FLUSHES)

    def on_flushed(
        self, batch: Batch[Any], seconds: float, errors: Mapping[int, BaseException]
    ) -> None:
        """Record a duration."""
        self.seconds.append(seconds)

    def __str__(self) -> str:
        if len(self.seconds) < 2:
            return "none yet"
        cuts = statistics.quantiles(self.seconds, n=100, method="inclusive")
        return f"p50 {cuts[49] * 1000:.1f} ms, p99 {cuts[98] * 1000:.1f} ms"


class Pace:
    """The recent growth rate of a count. Pure."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque([(0.0, 0)])

    def at(self, seconds: float, count: int) -> float:
        """The rate per second over about the last second, `seconds` after the start."""
        marks = self._marks
        marks.append((seconds, count))
        while len(marks) > 2 and marks[1][0] <= seconds - RECENT_SECONDS:
            marks.popleft()
        began, before = marks[0]
        return (count - before) / (seconds - began) if seconds > began else 0.0


class Progress:
    """The displayed figures, as text by name."""

    def __init__(
        self, batcher: Batcher[Any], times: FlushTimes, database: Database, total: int
    ) -> None:
        self._batcher = batcher
        self._times = times
        self._database = database
        self._pace = Pace()
        self._began = time.monotonic()
        self.total = total

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def done(self) -> int:
        """Items stored in the database."""
        return self._batcher.tally().flushed_ok

    def figures(self) -> dict[str, str]:
        """The current figures."""
        stats = self._batcher.stats()
        tally = stats.tally
        return {
            "delivered": f"{tally.flushed_ok:,} of {self.total:,}",
            "rate": f"{self._pace.at(self.seconds, tally.flushed_ok):,.0f} rows/s",
            "open": f"{tally.queued:,}",
            "in flight": f"{tally.in_flight:,}",
            "backing off": f"{tally.backing_off:,}",
            "failed": f"{tally.flushed_fail:,}",
            "flushes": ", ".join(f"{reason} {count:,}" for reason, count in stats.flushes.items())
            or "none",
            "flush time": str(self._times),
            "server": self._database.state,
        }


class Shown(Protocol):
    """Figures to display."""

    total: int

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        ...

    @property
    def done(self) -> int:
        """Finished items of the `total`."""
        ...

    def figures(self) -> dict[str, str]:
        """The current figures."""
        ...


class View(Protocol):
    """A display of progress."""

    def open(self) -> None:
        """Begin the display of another scene; the first one needs no `open`."""
        ...

    def show(self, progress: Shown) -> None:
        """Show the current state."""
        ...

    def say(self, text: str) -> None:
        """Report an event."""
        ...

    def close(self) -> None:
        """End the live display; `say` still works."""
        ...


class PlainView:
    """A line about once a second, without control codes."""

    def __init__(self) -> None:
        self._shown = -1

    def open(self) -> None:
        """Restart the count of seconds."""
        self._shown = -1

    def show(self, progress: Shown) -> None:
        """Print the figures if a second has passed."""
        seconds = progress.seconds
        if int(seconds) > self._shown:
            self._shown = int(seconds)
            self.say(
                f"{seconds:5.1f} s  "
                + "  ".join(f"{name}: {figure}" for name, figure in progress.figures().items())
            )

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)

    def close(self) -> None:
        """Do nothing."""


class LiveView:
    """A display that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def open(self) -> None:
        """Begin a new display below."""
        self._live = Live(console=self._live.console, auto_refresh=False)
        self._live.start()

    def show(self, progress: Shown) -> None:
        """Draw a bar and the figures below it."""
        bar = Table.grid(expand=True)  # a bar alone does not end its line
        bar.add_row(ProgressBar(total=progress.total, completed=progress.done))
        table = Table.grid(padding=(0, 3))
        for name, figure in progress.figures().items():
            table.add_row(Text(name, style="dim"), Text(figure))
        self._live.update(Panel(Group(bar, table), title="flights"), refresh=True)

    def say(self, text: str) -> None:
        """Print a line above the display."""
        self._live.console.print(Text(text))

    def close(self) -> None:
        """Stop redrawing; the last state stays visible."""
        self._live.stop()


def make_view(*, plain: bool) -> View:
    """Choose the view from the output stream itself: the environment can mislead rich."""
    if plain or not sys.stdout.isatty():
        return PlainView()
    console = Console()
    return PlainView() if console.is_dumb_terminal else LiveView(console)


async def show_periodically(view: View, progress: Progress) -> None:
    """Show the state periodically until cancelled."""
    while True:
        view.show(progress)
        await asyncio.sleep(EVERY)
