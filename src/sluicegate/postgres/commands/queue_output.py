"""The output of `sluicegate queue`: tables or JSON on standard output."""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from ...cli.dlq.output import encodable
from ...letters.text import printable
from ..schema.queue_contents import LOST_JOBS
from .output import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..queues.contents import StoppedJob
    from ..queues.report import QueueReport
    from ..queues.stats import LaneStats, QueueStats, RangeStats, StoredQueue

LAG = ("queue", "jobs", "ready", "new", "delayed", "leased", "blocked", "parked", "dead", "oldest", "consumers", "state")  # fmt: skip
LANES = ("key", "state", "jobs", "seconds", "attempts", "consumer", "reason")
JOBS = ("place", "state", "seconds", "attempts", "reason")
KEYS = ("key", "slot", "jobs", "seconds", "why")
RANGES = ("group", "slots", "consumer", "state")
_NUMBERS = frozenset({*LAG[1:-1], "seconds", "attempts", "place", "slot"})


def print_queues(found: Mapping[str, StoredQueue], *, in_json: bool) -> None:
    """Print a line per queue with the settings that are not the default, or JSON."""
    if in_json:
        print_json({name: _plain(asdict(each)) for name, each in found.items()})
        return
    rows = [
        (name, "paused" if each.is_paused else "", _settings(each)) for name, each in found.items()
    ]
    print_table(("queue", "state", "settings"), rows)


def _settings(queue: StoredQueue) -> str:
    default = type(queue.settings)(ordering_required=queue.settings.ordering_required)
    told = [f"poison={queue.settings.poison}"]
    for field in fields(default):
        value = getattr(queue.settings, field.name)
        if field.name == "ordering_required":
            told += ["ordering_required"] if value else []
        elif field.name != "poison" and value != getattr(default, field.name):
            shown = _span(value) if isinstance(value, timedelta) else value
            told.append(field.name if value is True else f"{field.name}={shown}")
    return ", ".join(told)


def _span(span: timedelta) -> str:
    """Format a time span as the command accepts it."""
    seconds = span.total_seconds()
    for unit, size in {"d": 86_400, "h": 3600, "m": 60}.items():
        if seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def print_lag(found: Mapping[str, QueueStats], count_to: int, *, in_json: bool) -> None:
    """Print a line per queue, or an object per queue."""
    if in_json:
        print_json({name: asdict(stats) for name, stats in found.items()})
        return

    def count(number: int) -> str:
        return f"{number}+" if number >= count_to else str(number)

    rows: list[Sequence[object]] = []
    for name, each in found.items():
        numbers = (each.jobs, each.ready, each.bells, each.delayed, each.leased)
        stopped = (each.blocked, each.parked, each.dead)
        rows.append(
            (
                name,
                *map(count, (*numbers, *stopped)),
                f"{each.oldest_seconds:.1f}",
                each.members,
                "paused" if each.is_paused else "",
            )
        )
    print_table(LAG, rows, _NUMBERS)
    for name, each in found.items():
        if each.without_lane:
            print(encodable(printable(f"\n{name}: {LOST_JOBS % each.without_lane}")))


def print_lanes(lanes: Sequence[LaneStats], jobs: Sequence[StoppedJob], *, in_json: bool) -> None:
    """Print a line per key and a line per stopped job without a key, or both as JSON."""
    if in_json:
        print_json(
            {"lanes": [asdict(each) for each in lanes], "jobs": [asdict(each) for each in jobs]}
        )
        return
    rows = [
        (
            *(each.key, each.state, each.jobs, f"{each.seconds:.1f}", each.attempts),
            each.owner or "",
            each.reason or "",
        )
        for each in lanes
    ]
    print_table(LANES, rows, _NUMBERS)
    if jobs:
        print("\njobs without a key:")
        stopped = [
            (each.place, each.state, f"{each.seconds:.1f}", each.attempts, each.reason or "")
            for each in jobs
        ]
        print_table(JOBS, stopped, _NUMBERS)


def print_report(report: QueueReport) -> None:
    """Print a queue's facts, the reasons why it waits, its ranges and its keys."""
    stats = report.stats
    facts = {
        "queue": report.queue.name,
        "settings": _settings(report.queue),
        "jobs": f"{stats.jobs}, {stats.delayed} of them delayed; {stats.dead} dead letters",
        "keys": f"{stats.ready} ready, {stats.leased} leased, {stats.blocked} blocked, "
        f"{stats.parked} parked; {stats.bells} new",
        "oldest": f"{stats.oldest_seconds:.1f} s",
        "consumers": f"{stats.members} seen, of {len(report.members)}",
    }
    for name, value in facts.items():
        print(encodable(printable(f"{name + ':':11}{value}")))
    for note in report.notes:
        print(encodable(printable(f"- {note}")))
    if report.ranges and report.is_routed:
        print()
        print_table(RANGES, _join(report.ranges), ())
    if report.lanes:
        print()
        rows = [
            (each.key, each.slot, each.jobs, f"{each.seconds:.1f}", report.reason(each))
            for each in report.lanes
        ]
        print_table(KEYS, rows, _NUMBERS)


def report_as_dict(report: QueueReport) -> dict[str, Any]:
    """Convert the report for JSON, with the reasons."""
    found: dict[str, Any] = _plain(asdict(report))
    found["notes"] = list(report.notes)
    for lane, each in zip(found["lanes"], report.lanes, strict=True):
        lane["why"] = report.reason(each)
    return found


def _join(ranges: Sequence[RangeStats]) -> list[tuple[str, str, str, str]]:
    """Make rows of ranges; join neighbours with the same consumer and state."""
    found: list[tuple[str, int, int, str, str]] = []
    for each in ranges:
        draining = "draining" if each.waits_for is not None else ""
        state = draining or ("" if each.is_live else "not seen")
        row = (each.group, each.lo, each.hi, each.consumer, state)
        last = found[-1] if found else None
        if last and (last[0], last[2] + 1, *last[3:]) == (each.group, each.lo, *row[3:]):
            found[-1] = (last[0], last[1], *row[2:])
        else:
            found.append(row)
    return [(group, f"{lo}-{hi}", consumer, state) for group, lo, hi, consumer, state in found]


def _plain(value: Any) -> Any:
    """Convert times for JSON: intervals to seconds, moments to text."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in cast("list[Any]", value)]
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if hasattr(value, "isoformat") else value
