"""The arguments of `sluicegate queue`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NamedTuple

from ...cli.parser import DSN, age, when
from ..queues.admin import STATS_TO
from ..queues.queries import STATES
from ..queues.ring import SLOTS
from ..queues.settings import POISONS, QueueSettings
from ..schema.opened import DEFAULT_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...cli.parser import Counts, Parser

    Declare = Callable[[argparse.ArgumentParser, Counts], None]


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
    _Command(
        "lanes",
        "list keys with work by state, and stopped jobs without a key",
        example="mails --state parked",
    ),
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
    _Command("redrive", "enqueue dead letters again", example="mails --key ann --limit 100"),
    _Command(
        "purge",
        "delete waiting jobs, kept handled jobs, or dead letters",
        example="mails dead --older-than 30d",
    ),
    _Command("pause", "stop the delivery of a queue's jobs"),
    _Command("resume", "end a pause"),
    _Command("retain", "apply the retention settings of queues", "QUEUE?"),
    _Command("drop", "delete a queue with all its kept data"),
)
_DEFAULT = QueueSettings()
_TOLD = {
    "QUEUE": "the queue",
    "KEY": "the key; none for a queue with ordering_required",
    "GROUP": "the group of consumers",
}


def queue_options(parser: Parser, counts: Counts) -> None:
    """Declare the sub-commands and their arguments."""
    add = parser.accept_commands("queue_command")
    for each in _COMMANDS:
        example = f"sluicegate queue {each.name} {DSN} {each.example or 'mails'}"
        command = add(each.name, each.text, example)
        command.add_argument(
            "dsn", metavar="DSN", help="postgresql://...; missing parts come from PG* variables"
        )
        for name in each.positional.split():
            kind = name.rstrip("?")
            optional: dict[str, Any] = {"nargs": "?"} if name.endswith("?") else {}
            if kind == "KEY":
                optional["default"] = ""
            told = "the queue (default: all)" if name == "QUEUE?" else _TOLD[kind]
            command.add_argument(kind.lower(), metavar=kind, help=told, **optional)
        if each.name in _OPTIONS:
            _OPTIONS[each.name](command, counts)
        command.add_argument(
            "--schema",
            default=DEFAULT_SCHEMA,
            metavar="NAME",
            help=f"the queues' schema (default: {DEFAULT_SCHEMA})",
        )
        if each.name in {"list", "lag", "lanes", "explain"}:
            command.add_argument("--json", action="store_true", help="print JSON")
        if each.name in {"unblock", "purge", "drop"}:
            command.add_argument("--yes", action="store_true", help="do not ask before the change")


def _create(command: argparse.ArgumentParser, counts: Counts) -> None:
    poison = f"{_DEFAULT.poison}; with --ordering-required block"
    _settings(
        command,
        counts,
        {
            "--slot-function": f" (default: {_DEFAULT.slot_function})",
            "--poison": f" (default: {poison})",
            "--max-attempts": f" (default: {_DEFAULT.max_attempts})",
        },
    )


def _alter(command: argparse.ArgumentParser, counts: Counts) -> None:
    _settings(command, counts, {})


def _settings(
    command: argparse.ArgumentParser, counts: Counts, defaults: Mapping[str, str]
) -> None:
    """Declare the settings; only those given become attributes."""

    def option(name: str, text: str, metavar: str, kind: Callable[[str], Any], **more: Any) -> None:
        command.add_argument(
            name, type=kind, metavar=metavar, help=text, default=argparse.SUPPRESS, **more
        )

    for name, text in (
        ("--sticky", "assign keys to the consumers that own their slots"),
        ("--ordering-required", "all jobs in strict order, with one consumer at a time"),
    ):
        command.add_argument(
            name, action=argparse.BooleanOptionalAction, help=text, default=argparse.SUPPRESS
        )
    for name, text, words in (
        ("--slot-function", "the hash that maps keys to slots", ("sha256", "blake3")),
        ("--poison", "the treatment of a job that cannot be handled", POISONS),
    ):
        told = text + defaults.get(name, "")
        command.add_argument(name, choices=words, help=told, default=argparse.SUPPRESS)
    told = "leases of a job before it counts as poison" + defaults.get("--max-attempts", "")
    option("--max-attempts", told, "N", counts())
    option("--max-depth", "maximum number of jobs, or none", "N", _or_none(counts()))
    option(
        "--max-in-flight", "maximum number of concurrent leases, or none", "N", _or_none(counts())
    )
    option("--key-rate", "maximum job starts per second and key, or none", "RATE", _or_none(_rate))
    option("--keep-done", "retention of handled jobs: 12h, 7d, none", "AGE", _or_none(age))
    option("--keep-dead", "retention of dead letters: 90d, none", "AGE", _or_none(age))


def _lag(command: argparse.ArgumentParser, counts: Counts) -> None:
    command.add_argument(
        "--count-to",
        type=counts(),
        default=STATS_TO,
        metavar="N",
        help=f"count at most N of each (default: {STATS_TO})",
    )


def _lanes(command: argparse.ArgumentParser, counts: Counts) -> None:
    command.add_argument("--state", choices=STATES, help="only keys in this state")
    _limit(command, counts, 100, "list at most N keys")


def _explain(command: argparse.ArgumentParser, counts: Counts) -> None:
    command.add_argument("--key", metavar="KEY", help="only this key")
    _limit(command, counts, 50, "explain at most N keys")


def _limit(command: argparse.ArgumentParser, counts: Counts, most: int, text: str) -> None:
    told = f"{text} (default: {most})"
    command.add_argument("--limit", type=counts(), default=most, metavar="N", help=told)


def _unblock(command: argparse.ArgumentParser, counts: Counts) -> None:
    command.add_argument(
        "--skip",
        action="store_true",
        help="make its first job a dead letter, and continue with the next",
    )
    _places(command, counts, "a job without a key, instead of a key")


def _places(command: argparse.ArgumentParser, counts: Counts, text: str) -> None:
    command.add_argument(
        "--place",
        dest="places",
        type=counts(),
        action="append",
        metavar="N",
        help=f"{text}; repeatable",
    )


def _park(command: argparse.ArgumentParser, counts: Counts) -> None:
    del counts
    command.add_argument(
        "--reason",
        default="parked by an operator",
        metavar="TEXT",
        help="the reason, for the record",
    )


def _move(command: argparse.ArgumentParser, counts: Counts) -> None:
    del counts
    command.add_argument(
        "slots", type=_slots, nargs="?", metavar="SLOTS", help="the slots: 0-32767, or one number"
    )
    command.add_argument(
        "consumer", nargs="?", metavar="CONSUMER", help="the new owner of the slots"
    )
    command.add_argument(
        "--automatic", action="store_true", help="let the ranges follow the live consumers again"
    )


def _redrive(command: argparse.ArgumentParser, counts: Counts) -> None:
    command.add_argument("--key", metavar="KEY", help="only those of this key")
    _places(command, counts, "only this job")
    command.add_argument("--limit", type=counts(), metavar="N", help="at most N")


def _purge(command: argparse.ArgumentParser, counts: Counts) -> None:
    del counts
    command.add_argument("what", choices=("waiting", "done", "dead"), help="which jobs")
    command.add_argument("--key", metavar="KEY", help="only those of this key")
    command.add_argument(
        "--older-than",
        type=when,
        metavar="TIME",
        help="only jobs enqueued, or finished, before TIME: 2026-01-31T12:00, or 90m, 12h, 7d ago",
    )


def _retain(command: argparse.ArgumentParser, counts: Counts) -> None:
    del counts
    for what, days, told in (
        ("ids", 7, "retention of the ids of enqueued jobs"),
        ("clients", 90, "retention of clients and their last numbers"),
    ):
        command.add_argument(
            f"--keep-{what}",
            type=age,
            default=age(f"{days}d"),
            metavar="AGE",
            help=f"{told} (default: {days}d)",
        )


def _drop(command: argparse.ArgumentParser, counts: Counts) -> None:
    del counts
    command.add_argument(
        "--force", action="store_true", help="drop it even if it has jobs or dead letters"
    )


_OPTIONS: dict[str, Declare] = {
    "create": _create,
    "alter": _alter,
    "lag": _lag,
    "lanes": _lanes,
    "explain": _explain,
    "unblock": _unblock,
    "park": _park,
    "move": _move,
    "redrive": _redrive,
    "purge": _purge,
    "retain": _retain,
    "drop": _drop,
}


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
