"""The arguments of `sluicegate stream`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, cast

from ..._core.subscriptions import SLOTS
from ...cli.parser import DSN
from ...cli.when import when
from ..schema.opened import DEFAULT_SCHEMA
from ..streams.admin import COUNT_TO

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...cli.group import Counts
    from ...cli.parser import Parser
    from ..streams.admin import ResetPoint


_COMMANDS = {
    "lag": "print the number of unhandled messages of each subscription, and the age of the oldest",
    "explain": "print a subscription's positions, why its slots wait, and what holds back the horizon",
    "pause": "stop the delivery of messages to a subscription, or of some slots",
    "resume": "end a pause",
    "reset": "move a subscription to the beginning, the next message, a time or a position",
    "skip": "skip one message of a subscription",
    "delete": "delete a subscription, the messages of a stream, or old messages",
    "replay": "pass messages to a handler again, outside any subscription; stores nothing",
}

_EXAMPLES = {
    "pause": "billing --slots 0-15",
    "reset": "billing --to 2026-01-31T12:00",
    "skip": "billing 4711 --reason poison",
    "delete": "--older-than 90d",
    "replay": "app:handle --category order --from 4000",
}
"""The arguments after the DSN in the example of each command; default: a subscription."""


def stream_options(parser: Parser, counts: Counts) -> None:
    """Declare the sub-commands and their arguments."""
    add = parser.accept_commands("stream_command")
    for name, text in _COMMANDS.items():
        example = f"sluicegate stream {name} {DSN} {_EXAMPLES.get(name, 'billing')}"
        command = add(name, text, example)
        command.add_argument(
            "dsn", metavar="DSN", help="postgresql://...; missing parts come from PG* variables"
        )
        if name != "replay":
            optional: dict[str, Any] = {"nargs": "?"} if name in {"lag", "delete"} else {}
            told = {"lag": "the subscription (default: all)"}.get(name, "the subscription")
            command.add_argument("subscription", metavar="SUBSCRIPTION", help=told, **optional)
        if name in _OPTIONS:
            _OPTIONS[name](command, counts)
        command.add_argument(
            "--schema",
            default=DEFAULT_SCHEMA,
            metavar="NAME",
            help=f"the log's schema (default: {DEFAULT_SCHEMA})",
        )
        if name in {"lag", "explain"}:
            command.add_argument("--json", action="store_true", help="print JSON")
            command.add_argument(
                "--count-to",
                type=counts(),
                default=COUNT_TO,
                metavar="N",
                help=f"count at most N messages (default: {COUNT_TO})",
            )
        if name in {"reset", "skip", "delete"}:
            command.add_argument("--yes", action="store_true", help="do not ask before the change")
        if name in {"reset", "delete"}:
            force = f"{name} it even while processes serve the subscription"
            if name == "delete":
                force = (
                    "delete a subscription even while processes serve it, or messages that a "
                    "subscription has not handled"
                )
            command.add_argument("--force", action="store_true", help=force)


def _lag(command: argparse.ArgumentParser, counts: Counts) -> None:
    del counts
    command.add_argument(
        "--slots", action="store_true", help="print one line per slot that has unhandled messages"
    )


def _explain(command: argparse.ArgumentParser, counts: Counts) -> None:
    del counts
    command.add_argument(
        "--all", action="store_true", help="print slots without unhandled messages too"
    )


def _slots(command: argparse.ArgumentParser, counts: Counts) -> None:
    del counts
    command.add_argument(
        "--slots",
        type=_slot_numbers,
        metavar="SLOTS",
        help="only these slots: 7, 0-15, or 1,2,8-11",
    )


def _reset(command: argparse.ArgumentParser, counts: Counts) -> None:
    del counts
    command.add_argument(
        "--to",
        type=_point,
        required=True,
        metavar="POINT",
        help="beginning; next (the next message that is appended); a position; or a time: "
        "2026-01-31T12:00, or 90m, 12h, 7d ago",
    )


def _skip(command: argparse.ArgumentParser, counts: Counts) -> None:
    command.add_argument(
        "position", type=counts(), metavar="POSITION", help="the message's position in the log"
    )
    command.add_argument("--reason", default="", metavar="TEXT", help="the reason, for the record")


def _delete(command: argparse.ArgumentParser, counts: Counts) -> None:
    command.add_argument("--stream", metavar="NAME", help="delete all messages of this stream")
    command.add_argument(
        "--older-than",
        type=when,
        metavar="TIME",
        help="delete messages appended before TIME: 2026-01-31T12:00, or 90m, 12h, 7d ago",
    )
    command.add_argument(
        "--before", type=counts(), metavar="POSITION", help="delete messages before POSITION"
    )


def _replay(command: argparse.ArgumentParser, counts: Counts) -> None:
    command.add_argument(
        "handler",
        metavar="MODULE:HANDLER",
        help="a consumer's handler: a function of one message, async or plain",
    )
    chosen = command.add_mutually_exclusive_group()
    chosen.add_argument(
        "--stream",
        action="append",
        metavar="NAME",
        help='only this stream, or "order-*"; repeatable',
    )
    chosen.add_argument("--category", metavar="NAME", help="only streams of this category")
    command.add_argument(
        "--from",
        type=counts(),
        default=1,
        dest="first",
        metavar="POSITION",
        help="the first position (default: 1)",
    )
    command.add_argument(
        "--to",
        type=counts(),
        dest="last",
        metavar="POSITION",
        help="the last position (default: the end of the log)",
    )


_OPTIONS: dict[str, Callable[[argparse.ArgumentParser, Counts], None]] = {
    "lag": _lag,
    "explain": _explain,
    "pause": _slots,
    "resume": _slots,
    "reset": _reset,
    "skip": _skip,
    "delete": _delete,
    "replay": _replay,
}


def _point(text: str) -> ResetPoint:
    if text in {"beginning", "next"}:
        return cast("ResetPoint", text)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else when(text)


def _slot_numbers(text: str) -> list[int]:
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
