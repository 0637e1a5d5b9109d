"""`sluicegate parked`: the parked keys of consumers on standard output, messages on standard error."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...cli.console import OK, UseError, encodable, say
from ...cli.parser import DSN, Group, count
from ...letters.items import stored
from ...letters.text import as_json, printable
from ..subscriptions.park_admin import COUNT_TO, ParkAdmin
from .output import accept_database, answer, hidden, print_json, print_table, run_command

if TYPE_CHECKING:
    import argparse

    from ..._core.park_store import ParkedRecord
    from ...cli.parser import Parser
    from ..subscriptions.park_admin import ParkedKey

_KEYS = ("group", "key", "records", "since", "first", "attempts", "error", "reason")
_RECORDS = ("record", "parked at", "attempts", "error", "reason")
_NUMBERS = frozenset({"records", "attempts"})


def parked(options: argparse.Namespace) -> int:
    """Run a sub-command; return the exit code: 0, or 2 for bad use or a refusal."""
    commands = {"list": _list, "show": _show, "unpark": _unpark}
    return answer(lambda: run_command(options, options.parked_command, ParkAdmin, commands))


async def _list(options: argparse.Namespace, admin: ParkAdmin) -> int:
    page = await admin.list(options.group, after=options.after, limit=options.limit)
    if options.json:
        print_json({"parked": [_key_as_dict(each) for each in page.items], "next": page.next})
        return OK
    if page.items:
        print_table(_KEYS, map(_key_row, page.items), _NUMBERS)
        say("`sluicegate parked show DSN GROUP KEY` shows the records of a key")
    elif page.next is None:
        say("no key is parked")
    if page.next is not None:
        say(f"there may be more: --after {page.next}")
    return OK


async def _show(options: argparse.Namespace, admin: ParkAdmin) -> int:
    given = {name: getattr(options, name) for name in ("after", "limit", "payload")}
    detail = await admin.show(options.group, options.key, **given)
    if detail is None:
        raise _none(options)
    payload = options.payload
    if options.json:
        records = [_record_as_dict(each, payload=payload) for each in detail.records]
        print_json({**_key_as_dict(detail.key), "first_records": records, "next": detail.next})
        return OK
    print(encodable(printable(f"{detail.key.group}  {detail.key.key}")))
    heads = (*_RECORDS, "payload") if payload else _RECORDS
    print_table(heads, [_record_row(each, payload=payload) for each in detail.records], _NUMBERS)
    if detail.next is not None:
        say(f"there may be more: --after {detail.next}")
    say("once the cause is repaired, `sluicegate parked unpark DSN GROUP KEY` continues the key")
    return OK


async def _unpark(options: argparse.Namespace, admin: ParkAdmin) -> int:
    if not await admin.unpark(options.group, options.key):
        raise _none(options)
    say(
        "requested: the consumer that owns the key handles its records; `sluicegate parked list` "
        "prints the key as long as one is left"
    )
    return OK


def _none(options: argparse.Namespace) -> UseError:
    text = f"the group {options.group!r} has no parked key {options.key!r}"
    return UseError(f"{text}; `sluicegate parked list` prints those that are")


def _key_as_dict(key: ParkedKey) -> dict[str, Any]:
    reason = hidden(key.reason, payload=False)
    return {**asdict(key), "since": key.since.isoformat(), "reason": reason}


def _key_row(key: ParkedKey) -> list[object]:
    records = f"{key.records}+" if key.records == COUNT_TO else key.records
    first = f"{key.topic}/{key.partition}@{key.offset}"
    since = key.since.isoformat(timespec="seconds")
    why = (key.error_type, hidden(key.reason, payload=False))
    return [key.group, key.key, records, since, first, key.attempts, *why]


def _record_as_dict(record: ParkedRecord, *, payload: bool) -> dict[str, Any]:
    found: dict[str, Any] = stored(record).value
    texts = {name: hidden(getattr(record, name), payload=payload) for name in ("reason", "message")}
    left_out = () if payload else ("value", "headers")
    return {name: each for name, each in (found | texts).items() if name not in left_out}


def _record_row(record: ParkedRecord, *, payload: bool) -> list[object]:
    row = [record.coordinates, record.parked_at.isoformat(timespec="seconds"), record.attempts]
    shown = [as_json(stored(record.value).value, encoding=None)] if payload else []
    return [*row, record.error_type, hidden(record.reason, payload=payload), *shown]


def parked_options(parser: Parser) -> None:
    """Declare the sub-commands and their arguments."""
    add = parser.accept_commands("parked_command")
    texts = {
        "list": "print the parked keys of consumers, and the record at which each stands",
        "show": "print the records of a parked key, in order",
        "unpark": "ask the consumer that owns a parked key to handle its records, and to continue",
    }
    for name, text in texts.items():
        more = "billing" if name == "list" else "billing 'orders/3 customer-7'"
        command = add(name, text, f"sluicegate parked {name} {DSN} {more}")
        accept_database(command)
        is_list: dict[str, Any] = {"nargs": "?"} if name == "list" else {}
        told = "the name of the consumer or pipe" + (" (default: all)" if is_list else "")
        command.argument("group", "GROUP", told, **is_list)
        if name != "list":
            command.argument("key", "KEY", "the key, as `list` prints it")
        if name == "show":
            command.flag("--payload", "print values and headers, too")
        if name != "unpark":
            _page_options(command)


def _page_options(command: Parser) -> None:
    command.argument(
        "--limit", "N", "print at most N keys or records (default: 100)", type=count, default=100
    )
    command.argument("--after", "CURSOR", "continue behind the page that ended with CURSOR")
    command.flag("--json", "print JSON")


GROUP = Group(
    description="Show the keys that consumers have parked in PostgreSQL, and their records; have "
    "the consumers unpark them.",
    example=f"sluicegate parked list {DSN}",
    options=parked_options,
    run=parked,
    extras={"asyncpg": "postgres"},
)
