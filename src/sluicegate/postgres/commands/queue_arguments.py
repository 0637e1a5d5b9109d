"""The arguments of `sluicegate queue`."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from ...cli.parser import DSN, age, count, when
from ..queues.admin import STATS_TO
from ..queues.jobs import FINISHED, JOB_STATES
from ..queues.ring import SLOTS
from ..queues.settings import POISONS, QueueSettings
from ..queues.ticks import CATCH_UPS, GRACE
from .output import accept_database

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...cli.parser import Parser

    _Option = tuple[str, dict[str, Any]]

_TOLD = {
    "QUEUE": "the queue",
    "KEY": "the key; none for a queue with ordering_required",
    "GROUP": "the group of consumers",
    "PLACE": "the place of a job, as `jobs` lists it",
    "NAME": "the schedule",
}


_IN_JSON = frozenset(
    {"list", "lag", "explain", "jobs", "show", "cancel", "retry", "schedules", "schedule", "run"}
)


class _Command(NamedTuple):
    """A sub-command, and its positional arguments after the DSN."""

    name: str
    text: str
    positional: str = "QUEUE"
    example: str = ""
    """Its arguments after the DSN in the example."""


_COMMANDS = (
    _Command(
        "create",
        "create a queue, or check that it exists with these settings",
        example="mails --max-attempts 3 --keep-dead 90d",
    ),
    _Command(
        "alter", "change settings of a queue; the others stay", example="mails --max-depth 10000"
    ),
    _Command("list", "list the queues with their settings", "", "--json"),
    _Command("lag", "print the number of waiting jobs, and the age of the oldest", "QUEUE?"),
    _Command("explain", "print why keys, slots and the whole queue wait"),
    _Command(
        "unblock",
        "continue a blocked or parked key, with its attempts kept",
        "QUEUE KEY?",
        "mails ann",
    ),
    _Command("park", "stop the delivery of a key's jobs", "QUEUE KEY?", "mails ann"),
    _Command(
        "unpark",
        "continue a parked or blocked key, with attempts from 0",
        "QUEUE KEY?",
        "mails ann",
    ),
    _Command(
        "move",
        "assign slots to a consumer of a sticky queue",
        "QUEUE GROUP",
        "mails mailers 0-32767 mailer-1",
    ),
    _Command(
        "jobs",
        "list jobs in pages; of dead letters also their number by error class",
        example="mails --state dead",
    ),
    _Command("show", "print a job and why it waits", "QUEUE PLACE", "mails 17"),
    _Command("cancel", "cancel jobs; a running handler is cancelled", "QUEUE PLACE+", "mails 17"),
    _Command(
        "retry",
        "let jobs be handled now, with attempts from 0; also dead and cancelled ones",
        "QUEUE PLACE+",
        "mails 17",
    ),
    _Command("redrive", "enqueue dead letters again", example="mails --key ann --limit 100"),
    _Command(
        "purge",
        "delete waiting jobs, kept handled jobs, or dead letters",
        example="mails dead --older-than 30d",
    ),
    _Command("schedules", "list schedules, or print one with its next ticks", "QUEUE NAME?"),
    _Command(
        "schedule",
        "create or replace a schedule of periodic jobs",
        "QUEUE NAME",
        "mails nightly --cron '30 2 * * *' --timezone Europe/Berlin",
    ),
    _Command("unschedule", "delete a schedule", "QUEUE NAME", "mails nightly"),
    _Command("run", "enqueue a job of a schedule now", "QUEUE NAME", "mails nightly"),
    _Command("pause", "stop the delivery of a queue's jobs, or a schedule"),
    _Command("resume", "end a pause"),
    _Command("retain", "apply the retention settings of queues", "QUEUE?"),
    _Command("drop", "delete a queue with all its kept data"),
)


def queue_options(parser: Parser) -> None:
    """Declare the sub-commands and their arguments."""
    add, options = parser.accept_commands("queue_command"), _options()
    for each in _COMMANDS:
        example = f"sluicegate queue {each.name} {DSN} {each.example or 'mails'}"
        command = add(each.name, each.text, example)
        accept_database(command)
        for name in each.positional.split():
            kind, dest = name.rstrip("?+"), name.rstrip("?").replace("+", "s").lower()
            optional: dict[str, Any] = {} if name == kind else {"nargs": name[-1]}
            if kind == "KEY":
                optional["default"] = ""
            elif kind == "PLACE":
                optional["type"] = count
            told = "the queue (default: all)" if name == "QUEUE?" else _TOLD[kind]
            command.argument(dest, kind, told, **optional)
        for option, keywords in options.get(each.name, ()):
            command.add_argument(option, **keywords)
        if each.name in {"jobs", "show", "schedules"}:
            command.flag("--payload", "print payloads and headers, too")
        if each.name in _IN_JSON:
            command.flag("--json", "print JSON")
        if each.name in {"unblock", "cancel", "purge", "drop", "unschedule"}:
            command.flag("--yes", "do not ask before the change")


def _option(name: str, *metavar_and_help: str, **keywords: Any) -> _Option:
    return name, {**dict(zip(("metavar", "help"), metavar_and_help, strict=False)), **keywords}


def _flag(name: str, text: str) -> _Option:
    return name, {"action": "store_true", "help": text}


def _options() -> dict[str, Sequence[_Option]]:
    """Return the arguments of each sub-command."""
    default = QueueSettings()
    poison = f"{default.poison}; with --ordering-required block"
    return {
        "create": _settings(
            {
                "--slot-function": f" (default: {default.slot_function})",
                "--poison": f" (default: {poison})",
                "--max-attempts": f" (default: {default.max_attempts})",
            },
        ),
        "alter": _settings({}),
        "lag": (
            _option(
                "--count-to",
                "N",
                f"count at most N of each (default: {STATS_TO})",
                type=count,
                default=STATS_TO,
            ),
        ),
        "explain": (
            _option("--key", "KEY", "only this key"),
            _limit("explain at most N keys", 50),
        ),
        "unblock": (
            _flag("--skip", "make its first job a dead letter, and continue with the next"),
        ),
        "park": (
            _option(
                "--reason", "TEXT", "the reason, for the record", default="parked by an operator"
            ),
        ),
        "move": (
            _option("slots", "SLOTS", "the slots: 0-32767, or one number", type=_slots, nargs="?"),
            _option("consumer", "CONSUMER", "the new owner of the slots", nargs="?"),
            _flag("--automatic", "let the ranges follow the live consumers again"),
        ),
        "jobs": (
            _option(
                "--state",
                choices=JOB_STATES,
                help="only jobs in this state (default: all that have not left)",
            ),
            _KEY,
            _option("--error", "CLASS", "only dead letters of this error class"),
            _option(
                "--older-than",
                "TIME",
                "only done, dead or cancelled jobs that left before TIME: "
                "2026-01-31T12:00, or 90m, 12h, 7d ago",
                type=when,
            ),
            _limit("list at most N jobs", 100),
            _option("--after", "CURSOR", "continue behind the page that ended with CURSOR"),
        ),
        "redrive": (_KEY, _limit("at most N")),
        "purge": (
            _option("what", choices=("waiting", *FINISHED), help="which jobs"),
            _KEY,
            _option(
                "--older-than",
                "TIME",
                "only jobs enqueued, or finished, before TIME: "
                "2026-01-31T12:00, or 90m, 12h, 7d ago",
                type=when,
            ),
        ),
        "schedules": (
            _limit("list at most N schedules", 100),
            _option("--after", "NAME", "continue behind the page that ended with NAME"),
        ),
        "schedule": _schedule(),
        "pause": (_SCHEDULE,),
        "resume": (_SCHEDULE,),
        "retain": (
            _retention("ids", 7, "retention of the ids of enqueued jobs"),
            _retention("clients", 90, "retention of clients and their last numbers"),
        ),
        "drop": (_flag("--force", "drop it even if it has jobs or dead letters"),),
    }


_KEY = _option("--key", "KEY", "only those of this key")


_SCHEDULE = _option("--schedule", "NAME", "only this schedule, not the queue")


def _schedule() -> tuple[_Option, ...]:
    return (
        _option(
            "--cron",
            "EXPRESSION",
            "minute, hour, day of month, month and day of week, such as '30 2 * * MON-FRI'",
        ),
        _option("--every", "SPAN", "an interval instead: 30s, 15m, 12h, 7d", type=age),
        _option(
            "--timezone",
            "ZONE",
            "the time zone of --cron, such as Europe/Berlin (default: UTC)",
            default="UTC",
        ),
        _option(
            "--payload",
            "JSON",
            "the contents of its jobs (default: null)",
            dest="contents",
            type=_json,
        ),
        _option("--key", "KEY", "the key of its jobs"),
        _option(
            "--header",
            "NAME=TEXT",
            "a header of its jobs; repeatable",
            dest="headers",
            type=_header,
            action="append",
            default=[],
        ),
        _option("--priority", "N", "the priority of its jobs (default: 0)", type=int, default=0),
        _option(
            "--catch-up",
            choices=CATCH_UPS,
            default="last",
            help=f"which ticks fire if they are more than {GRACE} s late (default: last)",
        ),
    )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError("it must be JSON, such as '{\"n\": 1}'") from None


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError("it must be NAME=TEXT")
    return name, value


def _limit(text: str, most: int | None = None) -> _Option:
    told = text if most is None else f"{text} (default: {most})"
    return _option("--limit", "N", told, type=count, default=most)


def _retention(what: str, days: int, text: str) -> _Option:
    told = f"{text} (default: {days}d)"
    return _option(f"--keep-{what}", "AGE", told, type=age, default=age(f"{days}d"))


def _settings(defaults: Mapping[str, str]) -> list[_Option]:
    """Return the settings; only those given become attributes."""
    flag = argparse.BooleanOptionalAction
    most, kept = _or_none(count), _or_none(age)
    found = (
        _option("--sticky", action=flag, help="assign keys to the consumers that own their slots"),
        _option(
            "--ordering-required",
            action=flag,
            help="all jobs in strict order, with one consumer at a time",
        ),
        _option(
            "--slot-function",
            choices=("sha256", "blake3"),
            help="the hash that maps keys to slots",
        ),
        _option("--poison", choices=POISONS, help="the treatment of a job that cannot be handled"),
        _option("--max-attempts", "N", "leases of a job before it counts as poison", type=count),
        _option("--max-depth", "N", "maximum number of jobs, or none", type=most),
        _option("--max-in-flight", "N", "maximum number of concurrent leases, or none", type=most),
        _option(
            "--key-rate",
            "RATE",
            "maximum job starts per second and key, or none",
            type=_or_none(_rate),
        ),
        _option("--keep-done", "AGE", "retention of handled jobs: 12h, 7d, none", type=kept),
        _option("--keep-dead", "AGE", "retention of dead letters: 90d, none", type=kept),
    )
    return [
        (
            name,
            {
                **keywords,
                "help": keywords["help"] + defaults.get(name, ""),
                "default": argparse.SUPPRESS,
            },
        )
        for name, keywords in found
    ]


def _or_none(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        return None if text == "none" else kind(text)

    return parse


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        message = f"{text!r} must be a number of jobs per second, or none"
        raise argparse.ArgumentTypeError(message) from None


def _slots(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    ends = (first, last if dash else first)
    if not all(each.isascii() and each.isdecimal() and int(each) < SLOTS for each in ends):
        message = f"{text!r} must be slots below {SLOTS}, such as 0-32767 or 7"
        raise argparse.ArgumentTypeError(message)
    return int(ends[0]), int(ends[1])
