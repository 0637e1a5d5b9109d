"""`sluicegate stream`: findings on standard output, messages on standard error.

1. `reset`, `skip` and `delete` ask for confirmation, outside the event loop, where Ctrl-C ends it.
2. The objects are looked up before the confirmation, so a wrong name is reported without one.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from ..._core.subscriptions import SLOTS
from ...cli.console import OK, UseError, say
from ...cli.parser import DSN, Group, count, when
from ..streams.admin import COUNT_TO, SubscriptionAdmin
from .messages import delete_messages, which_messages
from .output import (
    accept_database,
    answer,
    print_json,
    print_lag,
    print_report,
    report_as_dict,
    run_command,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...cli.parser import Parser
    from ..streams.admin import ResetPoint
    from .output import Command, Question

_COMMANDS = {
    "lag": "print the number of unhandled messages of each subscription, and the age of the oldest",
    "explain": "print a subscription's positions, why its slots wait, and what holds back the horizon",
    "show": "print the message at a position",
    "pause": "stop the delivery of messages to a subscription, or of some slots",
    "resume": "end a pause",
    "reset": "move a subscription to the beginning, the next message, a time or a position",
    "skip": "skip one message of a subscription",
    "delete": "delete a subscription, the messages of a stream, or old messages",
}
_EXAMPLES = {
    "show": "4711 --payload",
    "pause": "billing --slots 0-15",
    "reset": "billing --to 2026-01-31T12:00",
    "skip": "billing 4711 --reason poison",
    "delete": "--older-than 90d",
}
"""The arguments after the DSN in the example of each command; default: a subscription."""


def stream(options: argparse.Namespace) -> int:
    """Run a sub-command; return the exit code.

    0, 1 if a deletion is incomplete, 2 for bad use or a refusal. Raises
    `KeyboardInterrupt` after Ctrl-C; the server rolls the current statement back then.
    """
    name = options.stream_command
    commands: dict[str, Command[SubscriptionAdmin]] = {
        "lag": _lag,
        "explain": _explain,
        "show": _show,
        "pause": _pause,
        "resume": _resume,
        "reset": _reset,
        "skip": _skip,
        "delete": _delete,
    }
    questions: dict[str, Question[SubscriptionAdmin]] = {
        "reset": _ask_reset,
        "skip": _ask_skip,
        "delete": _ask_delete,
    }
    return answer(lambda: run_command(options, name, SubscriptionAdmin, commands, questions))


# -- looks -----------------------------------------------------------------------------------------


async def _lag(options: argparse.Namespace, admin: SubscriptionAdmin) -> int:
    found = await admin.lag(options.subscription, count_to=options.count_to)
    if found or options.json:
        print_lag(found, options.count_to, in_json=options.json)
    else:
        say(f"the log {options.schema} has no subscription")
    return OK


async def _explain(options: argparse.Namespace, admin: SubscriptionAdmin) -> int:
    report = await admin.explain(options.subscription, count_to=options.count_to)
    if options.json:
        print_json(report_as_dict(report))
    else:
        print_report(report, options.count_to, all_slots=options.all)
    return OK


async def _show(options: argparse.Namespace, admin: SubscriptionAdmin) -> int:
    found = await admin.message(options.position)
    if found is None:
        raise UseError(f"the log has no message at {options.position}")
    facts = {**asdict(found), "id": str(found.id), "at": found.at.isoformat()}
    if not options.payload:
        del facts["data"], facts["metadata"]
    print_json(facts)
    return OK


# -- changes ---------------------------------------------------------------------------------------


async def _pause(options: argparse.Namespace, admin: SubscriptionAdmin) -> int:
    await admin.pause(options.subscription, options.slots)
    say(f"{_which(options)} is paused; `sluicegate stream resume` continues it")
    return OK


async def _resume(options: argparse.Namespace, admin: SubscriptionAdmin) -> int:
    await admin.resume(options.subscription, options.slots)
    stats = (await admin.lag(options.subscription, count_to=1))[options.subscription]
    say(f"{_which(options)} is resumed")
    if stats.is_paused:
        say(f"{options.subscription} is paused as a whole: resume it without --slots")
    return OK


def _which(options: argparse.Namespace) -> str:
    if options.slots is None:
        return str(options.subscription)
    return f"{options.subscription}, slots {_slot_names(options.slots)},"


async def _ask_reset(options: argparse.Namespace, admin: SubscriptionAdmin) -> str:
    report = await admin.explain(options.subscription)
    first = min((slot.position for slot in report.slots), default=0)
    last = max((slot.position for slot in report.slots), default=0)
    point = options.to if isinstance(options.to, str) else _point(options)
    return (
        f"reset {options.subscription} to {point}? Its slots are at positions {first} to "
        f"{last}, which are stored nowhere else."
    )


async def _reset(options: argparse.Namespace, admin: SubscriptionAdmin) -> int:
    number = await admin.reset(options.subscription, options.to, force=options.force)
    say(f"{options.subscription} is reset: it continues at position {number}")
    return OK


def _point(options: argparse.Namespace) -> str:
    to = options.to
    return f"position {to}" if isinstance(to, int) else str(to.isoformat())


async def _ask_skip(options: argparse.Namespace, admin: SubscriptionAdmin) -> str:
    await admin.explain(options.subscription)
    return f"skip message {options.position} of {options.subscription} for good?"


async def _skip(options: argparse.Namespace, admin: SubscriptionAdmin) -> int:
    found = await admin.skip(options.subscription, options.position, options.reason)
    say(
        f"{options.subscription} skips message {found.position}: {found.type}, version "
        f"{found.version} of the stream {found.stream}"
    )
    return OK


async def _ask_delete(options: argparse.Namespace, admin: SubscriptionAdmin) -> str:
    wanted = (options.stream, options.older_than, options.before)
    has_messages = any(each is not None for each in wanted)
    if options.stream is not None and any(each is not None for each in wanted[1:]):
        raise UseError("--stream deletes a whole stream: omit --older-than and --before")
    if has_messages == (options.subscription is not None):
        raise UseError("name a subscription, or messages by --stream, --older-than or --before")
    if has_messages:
        force = " Also those that subscriptions have not handled." if options.force else ""
        return f"delete {which_messages(options)} for good?{force}"
    await admin.explain(options.subscription)
    return f"delete the subscription {options.subscription} and its positions for good?"


async def _delete(options: argparse.Namespace, admin: SubscriptionAdmin) -> int:
    if options.subscription is None:
        return await delete_messages(options)
    await admin.delete(options.subscription, force=options.force)
    say(f"{options.subscription} is deleted; a process that serves it later starts it anew")
    return OK


def _slot_names(slots: Iterable[int]) -> str:
    return ", ".join(map(str, slots))


def stream_options(parser: Parser) -> None:
    """Declare the sub-commands and their arguments."""
    add = parser.accept_commands("stream_command")
    for name, text in _COMMANDS.items():
        example = f"sluicegate stream {name} {DSN} {_EXAMPLES.get(name, 'billing')}"
        command = add(name, text, example)
        accept_database(command)
        if name != "show":
            optional: dict[str, Any] = {"nargs": "?"} if name in {"lag", "delete"} else {}
            told = "the subscription" + " (default: all)" * (name == "lag")
            command.argument("subscription", "SUBSCRIPTION", told, **optional)
        if name in {"show", "skip"}:
            told = "the message's position in the log"
            command.argument("position", "POSITION", told, type=count)
        for option, metavar, told, keywords in _OPTIONS.get(name, ()):
            command.argument(option, metavar, told, **keywords)
        for flag, told in _FLAGS.get(name, {}).items():
            command.flag(flag, told)
        if name in {"lag", "explain"}:
            command.flag("--json", "print JSON")
            told = f"count at most N messages (default: {COUNT_TO})"
            command.argument("--count-to", "N", told, type=count, default=COUNT_TO)
        if name in {"reset", "skip", "delete"}:
            command.flag("--yes", "do not ask before the change")


_FLAGS = {
    "show": {"--payload": "print data and metadata, too"},
    "explain": {"--all": "print slots without unhandled messages too"},
    "reset": {"--force": "reset it even while processes serve the subscription"},
    "delete": {
        "--force": "delete a subscription even while processes serve it, or messages that a "
        "subscription has not handled"
    },
}


def _parse_point(text: str) -> ResetPoint:
    if text in {"beginning", "next"}:
        return cast("ResetPoint", text)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else when(text)


def _parse_slots(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        ends = (first, last if dash else first)
        if not all(each.isascii() and each.isdecimal() and int(each) < SLOTS for each in ends):
            message = f"{text!r} must be numbers below {SLOTS}, such as 7, 0-15 or 1,2,8-11"
            raise argparse.ArgumentTypeError(message)
        found += range(int(ends[0]), int(ends[1]) + 1)
    if not found:
        message = f"{text!r} contains no slot"
        raise argparse.ArgumentTypeError(message)
    return found


_SLOTS = ("--slots", "SLOTS", "only these slots: 7, 0-15, or 1,2,8-11", {"type": _parse_slots})
_OPTIONS: dict[str, tuple[tuple[str, str, str, dict[str, Any]], ...]] = {
    "pause": (_SLOTS,),
    "resume": (_SLOTS,),
    "reset": (
        (
            "--to",
            "POINT",
            (
                "beginning; next (the next message that is appended); a position; or a time: "
                "2026-01-31T12:00, or 90m, 12h, 7d ago"
            ),
            {"type": _parse_point, "required": True},
        ),
    ),
    "skip": (("--reason", "TEXT", "the reason, for the record", {"default": ""}),),
    "delete": (
        ("--stream", "NAME", "delete all messages of this stream", {}),
        (
            "--older-than",
            "TIME",
            "delete messages appended before TIME: 2026-01-31T12:00, or 90m, 12h, 7d ago",
            {"type": when},
        ),
        ("--before", "POSITION", "delete messages before POSITION", {"type": count}),
    ),
}


GROUP = Group(
    description=(
        "Show the progress of subscriptions of a stream log in PostgreSQL, and why they wait; pause, "
        "reset or delete them, skip a message, delete old ones."
    ),
    example=f"sluicegate stream lag {DSN}",
    options=stream_options,
    run=stream,
    extras={"asyncpg": "postgres"},
)
