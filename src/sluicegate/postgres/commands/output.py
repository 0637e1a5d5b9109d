"""The output of `sluicegate queue` and `stream`: tables or JSON on standard output, messages and
progress on standard error.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from ..._core.errors import SluicegateError
from ..._core.text import text_of
from ...cli.console import BAD_USE, UseError, confirmed, encodable, say
from ...letters.text import as_json, printable, without_secrets
from ..queues.contents import COUNT_TO
from ..records.access import SchemaObject
from ..schema.contents import LOST_JOBS
from ..schema.opened import DEFAULT_SCHEMA

if TYPE_CHECKING:
    import argparse
    from collections.abc import (
        Awaitable,
        Callable,
        Collection,
        Generator,
        Iterable,
        Mapping,
        Sequence,
    )

    from ...cli.parser import Parser
    from ..queues.jobs import Job, JobDetail, JobPage
    from ..queues.report import QueueReport
    from ..queues.stats import QueueStats, RangeStats, StoredQueue
    from ..streams.stats import SlotStats, SubscriptionReport, SubscriptionStats

T = TypeVar("T")
AdminT = TypeVar("AdminT", bound=SchemaObject)
Command: TypeAlias = "Callable[[argparse.Namespace, AdminT], Awaitable[int]]"
Question: TypeAlias = "Callable[[argparse.Namespace, AdminT], Awaitable[str | None]]"
"""The text to confirm; `None` if the command needs no confirmation."""
_WIDEST = 120
SAY_EVERY = 100_000
"""Number of jobs or messages between two lines of progress."""
LAG = ("subscription", "messages", "seconds", "slots", "processes", "state")
SLOTS = ("slot", "position", "messages", "oldest", "seconds", "why")
_NUMBERS = frozenset(
    {"messages", "message", "seconds", "slots", "slot", "processes", "position", "oldest"}
)
QUEUE_LAG = ("queue", "jobs", "ready", "new", "delayed", "leased", "blocked", "parked", "dead", "oldest", "consumers", "state")  # fmt: skip
JOB_LIST = ("place", "key", "state", "attempts", "at", "consumer", "reason")
KEYS = ("key", "slot", "jobs", "seconds", "why")
RANGES = ("group", "slots", "consumer", "state")
_QUEUE_NUMBERS = frozenset({*QUEUE_LAG[1:-1], "seconds", "attempts", "place", "slot"})


def accept_database(command: Parser) -> None:
    """Accept the DSN and the schema of a command."""
    command.argument("dsn", "DSN", "postgresql://...; missing parts come from PG* variables")
    told = f"the schema of streams and queues (default: {DEFAULT_SCHEMA})"
    command.argument("--schema", "NAME", told, default=DEFAULT_SCHEMA)


def answer(run: Callable[[], int]) -> int:
    """Return the exit code of a command, which prints the error of a refusal or of bad use."""
    try:
        return run()
    except (UseError, SluicegateError, OSError) as error:
        text = text_of(error)
        say(without_secrets(text) if isinstance(error, OSError) else text)
        return BAD_USE


def run_command(
    options: argparse.Namespace,
    name: str,
    make: Callable[..., AdminT],
    commands: Mapping[str, Command[AdminT]],
    questions: Mapping[str, Question[AdminT]] = MappingProxyType({}),
) -> int:
    """Run a command with an open admin object, once its question is confirmed; return the exit code."""

    async def run(command: Callable[[argparse.Namespace, AdminT], Awaitable[T]]) -> T:
        async with make(options.dsn, schema=options.schema) as admin:
            return await command(options, admin)

    if name in questions:
        question = asyncio.run(run(questions[name]))
        if question is not None and not confirmed(printable(question), yes=options.yes):
            say("nothing was changed")
            return BAD_USE
    return asyncio.run(run(commands[name]))


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


def print_facts(facts: Mapping[str, object], width: int = 14) -> None:
    """Print a line per fact that is not `None`; values other than text are JSON."""
    for name, value in facts.items():
        if value is not None:
            shown = value if isinstance(value, str) else as_json(value, encoding=None)
            print(encodable(printable(f"{name + ':':{width}}{shown}")))


def print_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    numbers: Collection[str] = _NUMBERS,
) -> None:
    """Print aligned columns, with `numbers` aligned to the right; longer cells are not aligned."""
    lines = [heads, *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if head in numbers else cell.ljust(width)
            for head, cell, width in zip(heads, line, widths, strict=True)
        ]
        print(encodable("  ".join(cells).rstrip()))


def print_lag(
    found: Mapping[str, SubscriptionStats], count_to: int, *, in_json: bool = False
) -> None:
    """Print a line per subscription, or an object per subscription as JSON.

    A count of `count_to` messages or more has a `+`. Subscriptions that could not be read in time
    have no line.
    """
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
    print_facts(facts)
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


def _count(number: int, count_to: int) -> str:
    return f"{number}+" if number >= count_to else str(number)


def print_queues(found: Mapping[str, StoredQueue], *, in_json: bool) -> None:
    """Print a line per queue with the settings that are not the default, or JSON."""
    if in_json:
        print_json({name: plain(asdict(each)) for name, each in found.items()})
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
            shown = span(value) if isinstance(value, timedelta) else value
            told.append(field.name if value is True else f"{field.name}={shown}")
    return ", ".join(told)


def span(span: timedelta) -> str:
    """Format a time span as the command accepts it."""
    seconds = span.total_seconds()
    for unit, size in {"d": 86_400, "h": 3600, "m": 60}.items():
        if seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def print_queue_lag(found: Mapping[str, QueueStats], count_to: int, *, in_json: bool) -> None:
    """Print a line per queue, or an object per queue."""
    if in_json:
        print_json({name: asdict(stats) for name, stats in found.items()})
        return
    rows: list[Sequence[object]] = []
    for name, each in found.items():
        stopped = (each.blocked, each.parked, each.dead)
        numbers = (each.jobs, each.ready, each.bells, each.delayed, each.leased, *stopped)
        rows.append(
            (
                name,
                *(_count(number, count_to) for number in numbers),
                f"{each.oldest_seconds:.1f}",
                each.members,
                "paused" if each.is_paused else "",
            )
        )
    print_table(QUEUE_LAG, rows, _QUEUE_NUMBERS)
    for name, each in found.items():
        if each.without_lane:
            print(encodable(printable(f"\n{name}: {LOST_JOBS % each.without_lane}")))


def print_jobs(
    page: JobPage, errors: Mapping[str, int] | None, *, in_json: bool, payload: bool
) -> None:
    """Print a line per job and the cursor of the next page, or all as JSON; and, of dead letters,
    first their number by error class.
    """
    if in_json:
        found = [_job_as_dict(each, payload=payload) for each in page.items]
        counted = {} if errors is None else {"errors": dict(errors)}
        print_json({**counted, "jobs": found, "next": page.next})
        return
    if errors:
        rows = [(_count(count, COUNT_TO), name or "(none)") for name, count in errors.items()]
        print_table(("jobs", "error"), rows, _QUEUE_NUMBERS)
        print()
    heads = (*JOB_LIST, "payload") if payload else JOB_LIST
    print_table(heads, [_job_row(each, payload=payload) for each in page.items], _QUEUE_NUMBERS)
    if page.next is not None:
        say(f"there may be more: --after {page.next}")


def _job_row(job: Job, *, payload: bool) -> list[object]:
    state = f"{job.state}, cancelled" if job.is_cancelled else job.state
    told = ": ".join(filter(None, (job.error, job.reason)))
    since = (job.finished_at or job.at).isoformat(timespec="seconds")
    row = [job.place, job.key or "", state, job.attempts, since, job.owner or ""]
    shown = [as_json(job.payload, encoding=None)] if payload else []
    return [*row, hidden(told, payload=payload), *shown]


def _job_as_dict(job: Job, *, payload: bool) -> dict[str, Any]:
    names = [field.name for field in fields(job)][: None if payload else -2]  # and no headers
    found = {
        name: getattr(job, name) for name in names
    }  # not a deep copy, of payloads that are deep
    times = {
        name: value.isoformat() for name, value in found.items() if isinstance(value, datetime)
    }
    return {**found, **times, "reason": hidden(job.reason, payload=payload)}


def hidden(text: str | None, *, payload: bool) -> str | None:
    """Return a text that may quote a secret, which is hidden unless payloads are shown."""
    return text if payload or text is None else without_secrets(text)


def print_job(detail: JobDetail, *, in_json: bool, payload: bool) -> None:
    """Print the facts of a job, of its lane, and why it waits."""
    facts = _job_as_dict(detail.job, payload=payload)
    facts["waits_for"] = hidden(detail.waits_for, payload=payload)
    if (lane := detail.lane) is not None:
        reason = hidden(lane.reason, payload=payload)
        shown = f"{lane.state}, {lane.jobs} jobs, slot {lane.slot}"
        facts["lane"] = asdict(lane) | {"reason": reason} if in_json else shown
    if in_json:
        print_json(facts)
    else:
        print_facts(facts)


def print_fates(fates: Mapping[int, str], *, in_json: bool) -> None:
    """Print a line per place with the result for its job, or all as JSON."""
    if in_json:
        print_json(dict(fates))
    else:
        print_table(("place", "result"), sorted(fates.items()), _QUEUE_NUMBERS)


def print_queue_report(report: QueueReport) -> None:
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
    print_facts(facts, 11)
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
        print_table(KEYS, rows, _QUEUE_NUMBERS)


def queue_report_as_dict(report: QueueReport) -> dict[str, Any]:
    """Convert the report for JSON, with the reasons."""
    found: dict[str, Any] = plain(asdict(report))
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


def plain(value: Any) -> Any:
    """Convert times for JSON: intervals to seconds, moments to text."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in cast("list[Any]", value)]
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if hasattr(value, "isoformat") else value
