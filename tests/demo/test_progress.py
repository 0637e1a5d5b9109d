"""The progress display of the demo."""

from __future__ import annotations

import asyncio
import io
import re

import pytest

pytest.importorskip("rich")
from examples.demo.database import Database
from examples.demo.progress import FlushTimes, LiveView, Pace, PlainView, Progress, make_view
from rich.console import Console

from sluicegate import Batch, Batcher


def test_the_pace_is_that_of_the_last_second() -> None:
    pace = Pace()
    assert pace.at(0.0, 0) == 0.0
    assert pace.at(0.5, 100) == 200.0
    assert pace.at(1.0, 200) == 200.0
    assert pace.at(2.0, 200) == 0.0
    assert pace.at(3.0, 500) == 300.0


def test_flush_times_are_told_from_two_on() -> None:
    times = FlushTimes()
    times.seconds.append(1.0)
    assert str(times) == "none yet"
    times.seconds.append(1.0)
    assert str(times) == "p50 1000.0 ms, p99 1000.0 ms"


class Begun(Progress):
    """Always in the first moment, however slow the machine is."""

    @property
    def seconds(self) -> float:
        return 0.0


def show(view: PlainView | LiveView, times: int = 1) -> None:
    async def some() -> None:
        flushes = FlushTimes()

        async def sink(batch: Batch[int]) -> None: ...

        async with Batcher(sink, observers=[flushes]) as batcher:
            progress = Begun(batcher, flushes, Database("postgresql://nowhere"), 7)
            await batcher.add_many(range(7))
            await batcher.flush()
            for _ in range(times):
                view.show(progress)
            view.say("[bold]something[/bold] happened")
        view.close()

    asyncio.run(some())


def test_plain_progress_is_a_line_a_second_without_control_codes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(PlainView(), times=3)
    figures, event = capsys.readouterr().out.splitlines()
    assert event == "[bold]something[/bold] happened"
    assert figures.startswith("  0.0 s  delivered: 7 of 7  rate: ")
    for part in (
        "open: 0",
        "in flight: 0",
        "backing off: 0",
        "flushes: manual 1",
        "flush time: none yet",
        "server: given, never killed",
    ):
        assert part in figures
    assert figures.isprintable()


def test_live_progress_is_a_panel_that_is_drawn_in_place() -> None:
    output = io.StringIO()
    show(LiveView(Console(file=output, force_terminal=True, width=90, height=30)))
    text = output.getvalue()
    assert text.endswith("\x1b[?25h"), "the cursor is shown again"
    text = re.sub(r"\x1b\[[\d;?]*\w", "", text)
    assert "flights" in text
    assert "7 of 7" in text
    assert "[dim]" not in text
    assert "[bold]something[/bold] happened" in text


def test_what_is_no_terminal_gets_plain_lines_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert isinstance(make_view(plain=False), PlainView)


@pytest.mark.parametrize(
    ("term", "plain", "kind"),
    [("xterm", False, LiveView), ("xterm", True, PlainView), ("dumb", False, PlainView)],
)
def test_a_terminal_gets_the_picture_unless_it_cannot_or_should_not(
    monkeypatch: pytest.MonkeyPatch, term: str, plain: bool, kind: type[object]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stdout", Terminal())
    view = make_view(plain=plain)
    view.close()
    assert isinstance(view, kind)
