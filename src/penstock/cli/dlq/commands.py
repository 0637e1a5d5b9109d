"""`penstock dlq`: look at dead letters, send them again, remove them."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._core import told
from ..._core.errors import PenstockError, RefusedError
from ..._core.opening import opened
from ...letters.file import FileStore
from ...letters.letter import INTERRUPTED, PENDING, REPLAYED, STATES, Selection, moment
from ...letters.postgres import PostgresStore
from ...letters.store import StoreError
from ...letters.text import as_json, printable, without_secrets
from ..named import UseError, named, named_sink
from .order import KeyOrder
from .replay import LEFT, Replay, ReplayRules

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ...letters.letter import Letter
    from ...letters.store import Store

OK, INCOMPLETE, BAD_USE, TERMINATED = 0, 1, 2, 143
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_WIDTH = 60
_MOST_STOPS = 10


# -- arguments -------------------------------------------------------------------------------------


def dlq_options(parser: argparse.ArgumentParser, count: Callable[[str], int]) -> None:
    """The sub-commands and their arguments."""
    commands = parser.add_subparsers(dest="dlq_command", required=True, metavar="COMMAND")
    texts = {
        "list": "one line for each letter",
        "show": "everything known of some letters, as JSON",
        "replay": "send letters through a stack of sinks; what is cut off goes on where it "
        "stopped when it is run again",
        "purge": "remove letters for good; by default those that were replayed",
    }
    for name, text in texts.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        command.add_argument(
            "store",
            help="the path of a file that FileSink wrote, or postgresql://...; what is left "
            "out is taken from PG* variables",
        )
        if name == "show":
            command.add_argument(
                "letters", nargs="+", metavar="LETTER", help="a letter's own key, or its beginning"
            )
        _filters(command, name)
        if name in {"list", "replay"}:
            command.add_argument("--limit", type=count, metavar="N", help="at most N letters")
        if name == "list":
            command.add_argument(
                "--json",
                action="store_true",
                help="everything known, a line of JSON for each letter",
            )
        if name in {"replay", "purge"}:
            command.add_argument(
                "--dry-run", action="store_true", help="only say what would be done"
            )
        if name == "replay":
            _replay_options(command, count)


def _filters(parser: argparse.ArgumentParser, name: str) -> None:
    default = {"list": PENDING, "show": "all", "replay": PENDING, "purge": REPLAYED}[name]
    parser.add_argument(
        "--table", default="dead_letters", help="the table, with PostgreSQL (default: dead_letters)"
    )
    parser.add_argument("--schema", help="the table's schema (default: found by the search path)")
    if name == "show":
        parser.set_defaults(state="all")
        return
    if name == "replay":
        parser.set_defaults(state="left")
    else:
        states = [*STATES, "left", "all"]
        parser.add_argument(
            "--state",
            choices=states,
            default="left" if name == "list" else default,
            help="left: pending or interrupted",
        )
    parser.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="KEY",
        help="of the items with this key, as `list` shows it; may be repeated",
    )
    parser.add_argument(
        "--letter",
        action="append",
        default=[],
        metavar="LETTER",
        help="with this key of its own, or one that begins so; may be repeated",
    )
    parser.add_argument("--batcher", help="from the batcher of this name")
    parser.add_argument("--tenant", help="of this tenant")
    parser.add_argument("--error-type", metavar="NAME", help="with an exception of this class")
    parser.add_argument(
        "--error-class", metavar="CLASS", help="permanent, transient, unlisted, unknown"
    )
    parser.add_argument("--message", metavar="TEXT", help="with this text in the error's message")
    parser.add_argument(
        "--since",
        type=_when,
        metavar="TIME",
        help="last tried at or after: 2026-01-31T12:00, or 90m, 12h, 7d ago",
    )
    parser.add_argument("--until", type=_when, metavar="TIME", help="last tried before")


def _replay_options(parser: argparse.ArgumentParser, count: Callable[[str], int]) -> None:
    parser.add_argument(
        "--to",
        required=True,
        metavar="MODULE:NAME",
        help="a sink, a stack, a function of a batch, or a function that makes one",
    )
    parser.add_argument(
        "--decode",
        metavar="MODULE:NAME",
        help="a function that makes an item of what JSON made of it",
    )
    parser.add_argument(
        "--batch-size",
        type=count,
        default=500,
        metavar="ITEMS",
        help="letters in a batch (default: 500)",
    )
    parser.add_argument(
        "--any-order",
        action="store_true",
        help="send letters of a key though earlier ones of it are left",
    )
    parser.add_argument(
        "--at-least-once",
        action="store_true",
        help="send what may have been delivered as if it had not been",
    )


def _when(text: str) -> datetime:
    ago = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if ago is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        return moment(text)
    except ValueError:
        message = (
            f"{text!r} must be a time such as 2026-01-31T12:00 (UTC unless it says "
            "otherwise), or 90m, 12h, 7d for so long ago"
        )
        raise argparse.ArgumentTypeError(message) from None


def _selection(options: argparse.Namespace) -> Selection:
    states = {"all": frozenset(STATES), "left": frozenset({PENDING, INTERRUPTED})}.get(
        options.state
    ) or frozenset({options.state})
    if options.dlq_command == "show":
        return Selection(states=states, letters=tuple(options.letters))
    names = ("batcher", "tenant", "error_type", "error_class", "message", "since", "until")
    given = {name: getattr(options, name) for name in names}
    return Selection(states=states, letters=tuple(options.letter), keys=tuple(options.key), **given)


# -- commands --------------------------------------------------------------------------------------


def dlq(options: argparse.Namespace) -> int:
    """Run a sub-command; return the exit code: 0, 1 if letters are left or unreadable, 2 for bad
    use. Raises `KeyboardInterrupt` after Ctrl-C.
    """
    commands: dict[str, Callable[[argparse.Namespace, Store], Coroutine[Any, Any, int]]] = {
        "list": _list,
        "show": _show,
        "replay": _replay,
        "purge": _purge,
    }
    try:
        return asyncio.run(_run(commands[options.dlq_command], options))
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (StoreError, UseError, PenstockError, OSError) as error:
        text = told.text_of(error)
        _say(without_secrets(text) if isinstance(error, OSError) else text)
        return BAD_USE


async def _run(
    command: Callable[[argparse.Namespace, Store], Coroutine[Any, Any, int]],
    options: argparse.Namespace,
) -> int:
    async with _store_of(options.store, options.table, options.schema) as store:
        answer = await command(options, store)
        sys.stdout.flush()
        unreadable = _tell_unreadable(store)
        return answer or unreadable


async def _list(options: argparse.Namespace, store: Store) -> int:
    number = 0
    selection = _selection(options)
    await _misses_a_key(selection, store)
    async with aclosing(store.letters(selection)) as letters:
        async for letter in letters:
            if number == options.limit:
                break
            number += 1
            print(_json(letter) if options.json else _encodable(_line(letter)))
    _say(f"{number} dead letters")
    return OK


async def _show(options: argparse.Namespace, store: Store) -> int:
    found = [letter async for letter in store.letters(_selection(options))]
    for letter in found:
        print(as_json(letter.as_dict(), encoding=sys.stdout.encoding, indent=2))
    missing = [
        start
        for start in options.letters
        if not any(letter.key.startswith(start) for letter in found)
    ]
    for start in missing:
        _say(f"no letter has a key of its own that begins with {start!r}")
    return BAD_USE if missing else OK


async def _purge(options: argparse.Namespace, store: Store) -> int:
    selection = _selection(options)
    if await _misses_a_key(selection, store):
        return BAD_USE
    if options.dry_run:
        number = len([letter async for letter in store.letters(selection)])
        _say(f"would remove {number} dead letters")
        return OK
    _say(f"removed {await store.purge(selection)} dead letters")
    return OK


async def _replay(options: argparse.Namespace, store: Store) -> int:
    sink = named_sink(options.to)
    decode = None if options.decode is None else named(options.decode)
    selection = _selection(options)
    if await _misses_a_key(selection, store):
        return BAD_USE
    if options.dry_run:
        return await _would_replay(options, store, selection, decode)
    rules = ReplayRules(
        batch_size=options.batch_size,
        decode=decode,
        twice=options.at_least_once,
        any_order=options.any_order,
    )
    replay = Replay(store, sink, rules)
    await store.hold()
    task = asyncio.current_task()
    terminated: list[int] = []

    def terminate() -> None:
        terminated.append(signal.SIGTERM)
        if task is not None:
            task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    try:
        async with opened(sink):
            await replay.run(selection, options.limit)
    except asyncio.CancelledError:
        _say(f"interrupted; {_told(replay)}; the same command goes on")
        if terminated:
            return TERMINATED
        raise
    _say(_told(replay))
    if replay.stopped_by is not None:
        _say(_stopped(replay.stopped_by))
        return INCOMPLETE
    _tell_stops(replay.order)
    return (
        OK
        if not replay.order.held_back
        and not set(replay.endings) - {"delivered", "duplicate", "spooled"}
        else INCOMPLETE
    )


async def _would_replay(
    options: argparse.Namespace,
    store: Store,
    selection: Selection,
    decode: Callable[[Any], Any] | None,
) -> int:
    number = interrupted = bad = 0
    order = KeyOrder(any_order=options.any_order)
    async with (
        aclosing(store.letters(LEFT)) as letters,
        aclosing(order.meant(letters, selection)) as meant,
    ):
        async for letter in meant:
            if number == options.limit:
                break
            number += 1
            interrupted += letter.may_be_there
            if decode is not None:
                try:
                    decode(letter.item)
                except Exception as error:
                    bad += 1
                    why = f"cannot be decoded: {told.for_log(error)}"
                    _say(f"{letter.key} {why}")
                    order.stop(letter, why)
    _say(
        f"would send {number - bad} dead letters to {options.to}; {interrupted} of {number} "
        "may have been delivered already"
    )
    _tell_stops(order)
    return INCOMPLETE if bad or order.held_back else OK


async def _misses_a_key(selection: Selection, store: Store) -> bool:
    """Say which keys no letter has, whatever its state; whether there are any."""
    if not selection.keys:
        return False
    others = {key: key[1:] if key.startswith(":") else f":{key}" for key in selection.keys}
    found: set[str | None] = set()
    async with aclosing(store.letters(Selection(keys=(*others, *others.values())))) as letters:
        async for letter in letters:
            found.add(letter.item_key)
    for key in set(others) - found:
        _say(
            f"no dead letter is of the key {key!r}"
            + (f"; there are some of {others[key]!r}" if others[key] in found else "")
        )
    return not found.issuperset(others)


def _store_of(name: str, table: str, schema: str | None) -> Store:
    """The store that a user named: a DSN of PostgreSQL, or the path of a file."""
    if name.startswith(("postgresql:", "postgres:")):
        return PostgresStore(name, table, schema)
    if "://" in name or "\0" in name:
        raise StoreError(
            f"{without_secrets(name)}: a store is the path of a file, or begins with postgresql://"
        )
    return FileStore(Path(name))


# -- what is shown ---------------------------------------------------------------------------------


def _line(letter: Letter) -> str:
    when = letter.last_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    message = printable(letter.message)
    short = message if len(message) <= _WIDTH else message[: _WIDTH - 3] + "..."
    key = () if letter.item_key is None else (f"key={printable(letter.item_key)}",)
    kinds = (printable(letter.error_class), printable(letter.error_type))
    return "  ".join(
        (printable(letter.key), when, f"{letter.attempts:3}", letter.state, *kinds, *key, short)
    )


def _json(letter: Letter) -> str:
    return as_json(letter.as_dict(), encoding=sys.stdout.encoding)


def _encodable(text: str) -> str:
    """The text with escapes for what the output's encoding has no form for."""
    encoding = sys.stdout.encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _stopped(error: BaseException) -> str:
    """Why a replay has ended before its end, and how to go on."""
    if isinstance(error, RefusedError):
        return (
            f"stopped, the destination refuses everything: {told.text_of(error)}; after "
            "that the same command goes on"
        )
    return (
        f"stopped, the destination takes nothing now: {told.for_log(error)}; the same "
        "command goes on"
    )


def _tell_unreadable(store: Store) -> int:
    """Say where the unreadable records are; return the exit code that they cause."""
    found = store.unreadable
    if not found.count:
        return OK
    for place in found.first:
        _say(place)
    if found.count > len(found.first):
        _say(f"and {found.count - len(found.first)} more")
    _say(f"{found.count} records are no dead letters and were left alone")
    return INCOMPLETE


def _told(replay: Replay) -> str:
    found = [
        f"{number} {name.replace('_', '-')}" for name, number in sorted(replay.endings.items())
    ]
    if replay.order.held_back:
        found.append(f"{replay.order.held_back} held back")
    return f"replayed: {', '.join(found) or 'nothing'}"


def _tell_stops(order: KeyOrder) -> None:
    """Say which keys have stopped, and where."""
    told = order.told
    for lane, stop in told[:_MOST_STOPS]:
        behind = f", {stop.behind} held back behind it" if stop.behind else ""
        _say(f"key {lane} stops at letter {stop.letter}{behind}: {stop.why}")
    if len(told) > _MOST_STOPS:
        _say(f"and {len(told) - _MOST_STOPS} keys more")


def _say(text: str) -> None:
    """A line on standard error, with nothing in it that a terminal would obey."""
    print(printable(text), file=sys.stderr)
