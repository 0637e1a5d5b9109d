"""The arguments of `penstock queue`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._clients.postgres.schema.opened import DEFAULT_SCHEMA
from ...queues.admin import STATS_TO
from ...queues.queue_queries import STATES
from ...queues.ring import SLOTS
from ...queues.settings import POISONS
from ..when import age, when

if TYPE_CHECKING:
    from collections.abc import Callable

    Counts = Callable[..., Callable[[str], int]]
    Declare = Callable[[argparse.ArgumentParser, Counts], None]


class _Command(NamedTuple):
    """A sub-command, and the positional arguments behind the DSN."""

    name: str
    text: str
    positional: str = "QUEUE"


_COMMANDS = (
    _Command("create", "make a queue, or find that it is there with these settings"),
    _Command("alter", "change settings of a queue; those not given stay"),
    _Command("list", "list the queues with their settings", ""),
    _Command("lag", "print what waits in queues, and for how long", "QUEUE?"),
    _Command("lanes", "list keys with work by state, and stopped jobs without a key"),
    _Command("explain", "print why keys, slots and the whole queue wait"),
    _Command("unblock", "continue a blocked key, its attempts counted on", "QUEUE KEY?"),
    _Command("park", "give out no more jobs of a key", "QUEUE KEY?"),
    _Command("unpark", "continue a parked key in order, with attempts from 0", "QUEUE KEY?"),
    _Command("move", "give slots to a consumer of a sticky queue", "QUEUE GROUP"),
    _Command("redrive", "enqueue dead letters again"),
    _Command("purge", "delete waiting jobs, handled ones that are kept, or dead letters"),
    _Command("pause", "give out no more jobs of a queue"),
    _Command("resume", "end a pause"),
    _Command("retain", "delete what queues keep no longer, by their settings", "QUEUE?"),
    _Command("drop", "delete a queue with all that was kept of it"),
)
_TOLD = {
    "QUEUE": "the queue",
    "KEY": "the key; none for a queue with ordering_required",
    "GROUP": "the group of consumers",
}


def queue_options(parser: argparse.ArgumentParser, counts: Counts) -> None:
    """Declare the sub-commands and their arguments."""
    commands = parser.add_subparsers(dest="queue_command", required=True)
    for each in _COMMANDS:
        text = each.text[0].upper() + each.text[1:] + "."
        command = commands.add_parser(each.name, help=each.text, description=text)
        command.add_argument(
            "dsn", metavar="DSN", help="postgresql://...; PG* variables supply missing parts"
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


def _settings(command: argparse.ArgumentParser, counts: Counts) -> None:
    """Only settings that are given become attributes."""

    def option(name: str, text: str, metavar: str, kind: Callable[[str], Any], **more: Any) -> None:
        command.add_argument(
            name, type=kind, metavar=metavar, help=text, default=argparse.SUPPRESS, **more
        )

    for name, text in (
        ("--sticky", "give keys to the consumers that own their slots"),
        ("--ordering-required", "all jobs in strict order, with one consumer at a time"),
    ):
        command.add_argument(
            name, action=argparse.BooleanOptionalAction, help=text, default=argparse.SUPPRESS
        )
    for name, text, words in (
        ("--slot-function", "how a key becomes a slot (default: sha256)", ("sha256", "blake3")),
        ("--poison", "what becomes of a job that cannot be handled (default: park_key)", POISONS),
    ):
        command.add_argument(name, choices=words, help=text, default=argparse.SUPPRESS)
    option("--max-attempts", "leases of a job before it is poison (default: 5)", "N", counts())
    option("--max-depth", "the most jobs, or none", "N", _or_none(counts()))
    option("--max-in-flight", "the most leases at once, or none", "N", _or_none(counts()))
    option("--key-rate", "jobs of a key that start in a second, or none", "RATE", _or_none(float))
    option("--keep-done", "how long handled jobs are kept: 12h, 7d, none", "AGE", _or_none(age))
    option("--keep-dead", "how long dead letters are kept: 90d, none", "AGE", _or_none(age))


def _lag(command: argparse.ArgumentParser, counts: Counts) -> None:
    command.add_argument(
        "--count-to",
        type=counts(),
        default=STATS_TO,
        metavar="N",
        help=f"count N of each at most (default: {STATS_TO})",
    )


def _lanes(command: argparse.ArgumentParser, counts: Counts) -> None:
    command.add_argument("--state", choices=STATES, help="only keys in this state")
    _limit(command, counts, 100, "list N keys at most")


def _explain(command: argparse.ArgumentParser, counts: Counts) -> None:
    command.add_argument("--key", metavar="KEY", help="only this key")
    _limit(command, counts, 50, "explain N keys at most")


def _limit(command: argparse.ArgumentParser, counts: Counts, most: int, text: str) -> None:
    told = f"{text} (default: {most})"
    command.add_argument("--limit", type=counts(), default=most, metavar="N", help=told)


def _unblock(command: argparse.ArgumentParser, counts: Counts) -> None:
    command.add_argument(
        "--skip", action="store_true", help="make its first job a dead letter, and go on behind it"
    )
    _places(command, counts, "this job without a key, instead of a key")


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
        "--reason", default="parked by an operator", metavar="TEXT", help="why, for the record"
    )


def _move(command: argparse.ArgumentParser, counts: Counts) -> None:
    del counts
    command.add_argument(
        "slots", type=_slots, nargs="?", metavar="SLOTS", help="0-32767, or one slot"
    )
    command.add_argument("consumer", nargs="?", metavar="CONSUMER", help="their owner from now on")
    command.add_argument(
        "--automatic", action="store_true", help="let ranges follow the live consumers again"
    )


def _redrive(command: argparse.ArgumentParser, counts: Counts) -> None:
    command.add_argument("--key", metavar="KEY", help="only those of this key")
    _places(command, counts, "only this one")
    command.add_argument("--limit", type=counts(), metavar="N", help="N at most")


def _purge(command: argparse.ArgumentParser, counts: Counts) -> None:
    del counts
    command.add_argument("what", choices=("waiting", "done", "dead"), help="which jobs")
    command.add_argument("--key", metavar="KEY", help="only those of this key")
    command.add_argument(
        "--older-than",
        type=when,
        metavar="TIME",
        help="only jobs enqueued before TIME, or finished: 2026-01-31T12:00, or 90m, 12h, 7d ago",
    )


def _retain(command: argparse.ArgumentParser, counts: Counts) -> None:
    del counts
    for what, days in (("ids", 7), ("clients", 90)):
        command.add_argument(
            f"--keep-{what}",
            type=age,
            default=age(f"{days}d"),
            metavar="AGE",
            help=f"how long {what} are known (default: {days}d)",
        )


def _drop(command: argparse.ArgumentParser, counts: Counts) -> None:
    del counts
    command.add_argument("--force", action="store_true", help="also its jobs and dead letters")


_OPTIONS: dict[str, Declare] = {
    "create": _settings,
    "alter": _settings,
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


def _slots(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    ends = (first, last if dash else first)
    if not all(each.isascii() and each.isdecimal() and int(each) < SLOTS for each in ends):
        message = f"{text!r} must be slots below {SLOTS}, such as 0-32767 or 7"
        raise argparse.ArgumentTypeError(message)
    return int(ends[0]), int(ends[1])
