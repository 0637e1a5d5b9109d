"""How the demo shows what goes on: a live picture on a terminal, a line a second elsewhere."""

from __future__ import annotations

import asyncio
import statistics
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from penstock._core.clock import LOOP_CLOCK
from penstock._core.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock._core.batch import Batch
    from penstock.batcher import Batcher

EVERY = 0.2
RECENT = 500


class FlushTimes(Observer):
    """The durations of the latest flushes."""

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=RECENT)

    def on_flushed(self, batch: Batch[Any], seconds: float, errors: Mapping[int, BaseException]) -> None:
        """Keep one."""
        self.seconds.append(seconds)

    def quantiles(self) -> tuple[float, float]:
        """The median and the 99th percentile, in seconds."""
        if len(self.seconds) < 2:
            return (0.0, 0.0)
        cuts = statistics.quantiles(self.seconds, n=100, method="inclusive")
        return cuts[49], cuts[98]


class View(Protocol):
    """A way to show progress."""

    def show(self, batcher: Batcher[Any], times: FlushTimes, total: int, seconds: float) -> None:
        """The state at this moment."""
        ...

    def say(self, text: str) -> None:
        """Something happened."""
        ...

    def close(self) -> None:
        """No more."""
        ...


def _figures(batcher: Batcher[Any], times: FlushTimes, seconds: float) -> dict[str, str]:
    stats = batcher.stats()
    tally = stats.tally
    p50, p99 = times.quantiles()
    return {
        "rate": f"{tally.flushed_ok / max(seconds, 1e-9):,.0f} rows/s",
        "open": f"{tally.queued:,}",
        "in flight": f"{tally.in_flight:,}",
        "backing off": f"{tally.backing_off:,}",
        "delivered": f"{tally.flushed_ok:,}",
        "failed": f"{tally.flushed_fail:,}",
        "flushes": ", ".join(f"{reason} {count:,}" for reason, count in stats.flushes.items()) or "none",
        "flush time": f"p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms",
    }


class PlainView:
    """A line about once a second, without control codes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = -1

    def show(self, batcher: Batcher[Any], times: FlushTimes, total: int, seconds: float) -> None:
        """Print the figures if a second has gone by."""
        if int(seconds) > self._shown:
            self._shown = int(seconds)
            figures = _figures(batcher, times, seconds)
            self.say(f"{seconds:5.1f} s  " + "  ".join(f"{name}: {figure}" for name, figure in figures.items()))

    def say(self, text: str) -> None:
        """Print it."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to take down."""


class LiveView:
    """A picture that is drawn anew in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def show(self, batcher: Batcher[Any], times: FlushTimes, total: int, seconds: float) -> None:
        """Draw the figures under a bar."""
        table = Table.grid(padding=(0, 3))
        for name, figure in _figures(batcher, times, seconds).items():
            table.add_row(f"[dim]{name}[/dim]", figure)
        bar = ProgressBar(total=total, completed=batcher.tally().flushed_ok, width=60)
        self._live.update(Group(bar, table), refresh=True)

    def say(self, text: str) -> None:
        """Print it above the picture."""
        self._live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last picture standing."""
        self._live.stop()


def make_view(*, plain: bool) -> View:
    """The view that fits where the output goes."""
    console = Console()
    return PlainView(console) if plain or not console.is_terminal else LiveView(console)


async def keep_showing(view: View, batcher: Batcher[Any], times: FlushTimes, total: int) -> None:
    """Show the batcher's state again and again, until cancelled."""
    began = LOOP_CLOCK.now()
    while True:
        view.show(batcher, times, total, LOOP_CLOCK.now() - began)
        await asyncio.sleep(EVERY)
