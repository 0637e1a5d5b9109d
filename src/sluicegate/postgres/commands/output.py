"""The output of `sluicegate queue` and `stream`: tables or JSON on standard output, messages and
progress on standard error.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..._core.errors import SluicegateError
from ..._core.told import text_of
from ...cli.dlq.output import encodable, say
from ...cli.exits import BAD_USE
from ...cli.named import UseError
from ...letters.text import as_json, printable, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

    from ..streams.stats import SlotStats, SubscriptionReport, SubscriptionStats

SAY_EVERY = 100_000
"""Number of jobs or messages between two lines of progress."""
LAG = ("subscription", "messages", "seconds", "slots", "processes", "state")
LAG_OF_SLOTS = ("subscription", "slot", "messages", "seconds", "state")
SLOTS = ("slot", "position", "messages", "oldest", "seconds", "why")
_NUMBERS = frozenset({"messages", "seconds", "slots", "slot", "processes", "position", "oldest"})


def answer(run: Callable[[], int]) -> int:
    """Return the exit code of a command, which prints the error of a refusal or of bad use."""
    try:
        return run()
    except (UseError, SluicegateError, OSError) as error:
        text = text_of(error)
        say(without_secrets(text) if isinstance(error, OSError) else text)
        return BAD_USE


class Progress:
    """The progress of a long change, printed periodically."""

    def __init__(self, what: str, done: str) -> None:
        self.count = 0
        self._examined = 0
        self._what = what
        self._done = done

    def note(self, count: int, examined: int | None = None) -> None:
        """Note the number that is done after a batch, of those that were examined."""
        self.count = count
        seen = count if examined is None else examined
        if seen - self._examined >= SAY_EVERY:
            self._examined = seen
            say(f"{self} so far")

    @contextmanager
    def interruptions(self) -> Generator[None]:
        """Print the progress of a change that is interrupted."""
        try:
            yield
        except (asyncio.CancelledError, KeyboardInterrupt):  # depends on the handler of SIGINT
            say(f"interrupted: at least {self}; run the same command again to continue")
            raise

    def __str__(self) -> str:
        return f"{self.count} {self._what} were {self._done}"


def print_json(value: object) -> None:
    """Print a value as JSON."""
    print(as_json(value, encoding=sys.stdout.encoding, indent=2))


def print_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    numbers: Collection[str] = _NUMBERS,
) -> None:
    """Print aligned columns, with `numbers` aligned to the right."""
    lines = [heads, *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if head in numbers else cell.ljust(width)
            for head, cell, width in zip(heads, line, widths, strict=True)
        ]
        print(encodable("  ".join(cells).rstrip()))


def print_lag(
    found: Mapping[str, SubscriptionStats], count_to: int, *, in_json: bool = False
) -> None:
    """Print a line per subscription, or an object per subscription."""
    if in_json:
        print_json({name: asdict(stats) for name, stats in found.items()})
        return
    rows: list[Sequence[object]] = []
    for name, stats in found.items():
        if (lag := stats.backlog) is None:
            continue
        paused = f"{stats.paused_slots} slots paused" if stats.paused_slots else ""
        state = "paused" if stats.is_paused else paused
        counts = (_count(lag.messages, count_to), f"{lag.seconds:.1f}", lag.waiting_slots)
        rows.append((name, *counts, "?" if stats.members is None else stats.members, state))
    print_table(LAG, rows)


def print_lag_of_slots(
    found: Mapping[str, Sequence[SlotStats]], count_to: int, *, in_json: bool = False
) -> None:
    """Print a line per slot with unhandled messages, or all slots as JSON."""
    if in_json:
        print_json({name: [asdict(slot) for slot in slots] for name, slots in found.items()})
        return
    rows: list[Sequence[object]] = []
    for name, slots in found.items():
        for each in slots:
            if each.messages:
                count = _count(each.messages, count_to)
                state = "paused" if each.is_paused else ""
                rows.append((name, each.slot, count, f"{each.seconds:.1f}", state))
    print_table(LAG_OF_SLOTS, rows)


def print_report(report: SubscriptionReport, count_to: int, *, all_slots: bool) -> None:
    """Print a subscription's facts, then its slots."""
    skipped = ", ".join(map(str, report.skipped)) or "none"
    horizon = report.horizon
    facts = {
        "subscription": report.name,
        "reads": report.selection,
        "start": report.start,
        "paused": "yes" if report.is_paused else "no",
        "processes": report.members,
        "skipped": skipped,
        "horizon": f"{horizon.position} of {horizon.last}",
    }
    for name, value in facts.items():
        print(encodable(printable(f"{name + ':':14}{value}")))
    if report.why_horizon_stands is not None:
        print(encodable(printable(f"{'':14}{report.why_horizon_stands}")))
    rows = [
        _slot_row(each, report.reason(each) or "", count_to)
        for each in report.slots
        if all_slots or report.reason(each)
    ]
    if rows:
        print()
        print_table(SLOTS, rows)


def report_as_dict(report: SubscriptionReport) -> dict[str, Any]:
    """Convert the report for JSON, with the reasons."""
    found = asdict(report)
    found["why_horizon_stands"] = report.why_horizon_stands
    for slot, each in zip(found["slots"], report.slots, strict=True):
        slot["reason"] = report.reason(each)
    return found


def _slot_row(slot: SlotStats, why: str, count_to: int) -> tuple[object, ...]:
    oldest = "" if slot.oldest is None else slot.oldest
    seconds = f"{slot.seconds:.1f}" if slot.messages else ""
    return (slot.slot, slot.position, _count(slot.messages, count_to), oldest, seconds, why)


def _count(messages: int, count_to: int) -> str:
    return f"{messages}+" if messages >= count_to else str(messages)
