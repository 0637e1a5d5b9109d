"""`sluicegate dlq`: list, show, replay and purge dead letters, and prepare their table.

A confirmation before letters are removed runs outside the event loop, where Ctrl-C ends it. Only
the letters that it counted are removed: others may arrive meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..._core.errors import SluicegateError
from ..._core.opening import opened
from ..._core.text import text_of
from ...letters.letter import REPLAYED, STATES
from ...letters.store import StoreError
from ...letters.text import as_json, without_secrets
from ..console import (
    BAD_USE,
    INCOMPLETE,
    OK,
    TERMINATED,
    Termination,
    UseError,
    confirmed,
    encodable,
    say,
)
from ..parser import Group
from . import prepare
from .arguments import (
    check_table,
    dlq_options,
    is_dsn,
    path_of,
    selection_of,
    store_of,
)
from .output import (
    details,
    json_of,
    line_of,
    say_unreadable,
    say_why_none,
    summary,
)
from .replay import Replay
from .target import target_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine

    from ...letters.letter import Selection
    from ...letters.store import Store


def dlq(options: argparse.Namespace) -> int:
    """Run a sub-command; return the exit code.

    0, 1 if letters remain or are unreadable, 2 for bad use. Raises `KeyboardInterrupt` after
    Ctrl-C.
    """
    commands: dict[str, Callable[[argparse.Namespace, Store], Coroutine[Any, Any, int]]] = {
        "list": _list,
        "show": _show,
        "replay": _replay,
    }
    try:
        if options.dlq_command == "init":
            return asyncio.run(init(options))
        if options.dlq_command == "purge":
            return purge(options)
        return asyncio.run(_run(commands[options.dlq_command], options))
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (StoreError, UseError, SluicegateError, OSError) as error:
        text = text_of(error)
        say(without_secrets(text) if isinstance(error, OSError) else text)
        return BAD_USE


async def _run(
    command: Callable[[argparse.Namespace, Store], Coroutine[Any, Any, int]],
    options: argparse.Namespace,
) -> int:
    async with store_of(options.store, options.table, options.schema) as store:
        answer = await command(options, store)
        sys.stdout.flush()
        has_unreadable = say_unreadable(store)
        return answer or (INCOMPLETE if has_unreadable else OK)


async def _list(options: argparse.Namespace, store: Store) -> int:
    number = 0
    selection = selection_of(options)
    async with aclosing(store.letters(selection)) as letters:
        async for letter in letters:
            if number == options.limit:
                break
            number += 1
            print(json_of(letter) if options.json else encodable(line_of(letter)))
    say(f"{number} dead letters")
    if not number:
        await say_why_none(store)
    return OK


async def _show(options: argparse.Namespace, store: Store) -> int:
    found = [letter async for letter in store.letters(selection_of(options))]
    for letter in found:
        print(as_json(letter.as_dict(), encoding=sys.stdout.encoding, indent=2))
    missing = [
        start
        for start in options.letters
        if not any(letter.key.startswith(start) for letter in found)
    ]
    for start in missing:
        say(f"no dead letter's own key begins with {start!r}")
    return BAD_USE if missing else OK


async def _replay(options: argparse.Namespace, store: Store) -> int:
    sink, rules = target_of(options)
    selection = selection_of(options)
    replay = Replay(store, sink, rules)
    await store.hold()
    termination = Termination()
    try:
        async with opened(sink):
            await replay.run(selection, options.limit)
    except asyncio.CancelledError:
        say(f"interrupted; {summary(replay)}; run the same command again to continue")
        if termination.has_come:
            return TERMINATED
        raise
    for line in (summary(replay), *details(replay)):
        say(line)
    if replay.stopped_by is not None:
        return INCOMPLETE
    if not replay.endings and not replay.order.held_back:
        await say_why_none(store)
    return (
        OK
        if not replay.order.held_back
        and not set(replay.endings) - {"delivered", "duplicate", "spooled"}
        else INCOMPLETE
    )


def purge(options: argparse.Namespace) -> int:
    """Remove the selected letters; return the exit code. Raises `StoreError` and `UseError`."""
    selection = selection_of(options)
    found = asyncio.run(_find(options, selection))
    if isinstance(found, int):
        return found
    if set(found.states) - {REPLAYED} and not confirmed(
        f"remove {found} for good? Those that were not replayed exist nowhere else.",
        yes=options.yes,
    ):
        say("nothing was removed")
        return BAD_USE
    return asyncio.run(_remove(options, replace(selection, only=frozenset(found.keys))))


async def _find(options: argparse.Namespace, selection: Selection) -> _Found | int:
    """Return the letters to remove, or the exit code if there are none."""
    found = _Found()
    async with store_of(options.store, options.table, options.schema) as store:
        async with aclosing(store.letters(selection)) as letters:
            async for letter in letters:
                found.keys.add(letter.key)
                found.states[letter.state] += 1
        if found.keys:
            return found
        await say_why_none(store)
        say("nothing to remove")
        return INCOMPLETE if say_unreadable(store) else OK


async def _remove(options: argparse.Namespace, selection: Selection) -> int:
    async with store_of(options.store, options.table, options.schema) as store:
        say(f"removed {await store.purge(selection)} dead letters")
        return INCOMPLETE if say_unreadable(store) else OK


@dataclass(slots=True)
class _Found:
    """The letters to remove."""

    keys: set[str] = field(default_factory=set[str])
    states: Counter[str] = field(default_factory=Counter[str])

    def __str__(self) -> str:
        counts = ", ".join(f"{self.states[each]} {each}" for each in STATES if self.states[each])
        return f"{len(self.keys)} dead letters ({counts})"


async def init(options: argparse.Namespace) -> int:
    """Create the table of a PostgreSQL store, unless it exists.

    Other stores need no preparation, which is reported instead. With `--dry-run` the statement is
    printed on standard output and not run. Running it again changes nothing. Returns the exit code.
    Raises `StoreError` if the name is not that of a store or the server refuses, and `ConfigError`
    for a bad table.
    """
    if not is_dsn(options.store):
        path = path_of(options.store)
        say(f"{path}: nothing to do, FileSink creates a file of dead letters itself")
        return OK
    table, schema = check_table(options.table), options.schema
    statement = await prepare(options.store, table, schema, dry_run=options.dry_run)
    if options.dry_run and statement is not None:
        print(encodable(f"{statement};"))
    does = "would create" if options.dry_run else "created"
    say("the table exists already" if statement is None else f"{does} the table {table}")
    return OK


GROUP = Group(
    description=(
        "List the dead letters in a file or a table, show them, replay them through a stack "
        "of sinks, or purge them; create the table."
    ),
    example="sluicegate dlq list dead.jsonl",
    options=dlq_options,
    run=dlq,
    extras={"asyncpg": "postgres", "zstandard": "files", "aiokafka": "kafka"},
)
