"""`sluicegate dlq`: list, show, replay and purge dead letters, and prepare their table."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ..._core.errors import SluicegateError
from ..._core.logs import for_log
from ..._core.opening import opened
from ..._core.text import text_of
from ...letters.store import StoreError
from ...letters.text import as_json, without_secrets
from ..exits import BAD_USE, INCOMPLETE, OK, TERMINATED, Termination
from ..named import UseError
from .arguments import selection_of
from .census import say_why_none
from .handling import RefusedLetter
from .init import init
from .keys import report_missing_keys
from .order import ReplayOrder
from .output import (
    encodable,
    json_of,
    line_of,
    say,
    say_reasons,
    say_refusals,
    say_repr_only,
    say_stops,
    say_unreadable,
    stop_reason,
    summary,
)
from .purge import purge
from .replay import LEFT, Replay
from .stores import store_of
from .targets import target_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine

    from ...letters.letter import Selection
    from ...letters.store import Store
    from .replay import ReplayRules


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
    is_mistaken = await report_missing_keys(selection, store)
    async with aclosing(store.letters(selection)) as letters:
        async for letter in letters:
            if number == options.limit:
                break
            number += 1
            print(json_of(letter) if options.json else encodable(line_of(letter)))
    say(f"{number} dead letters")
    if not number and not is_mistaken:
        await say_why_none(selection, store)
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
    if await report_missing_keys(selection, store):
        return BAD_USE
    if options.dry_run:
        return await _dry_run(options, store, selection, rules)
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
    say(summary(replay))
    say_repr_only(replay)
    say_refusals(replay)
    if replay.stopped_by is not None:
        say(stop_reason(replay.stopped_by))
        return INCOMPLETE
    if not replay.endings and not replay.order.held_back:
        await say_why_none(selection, store)
    say_reasons(replay)
    say_stops(replay.order)
    return (
        OK
        if not replay.order.held_back
        and not set(replay.endings) - {"delivered", "duplicate", "spooled"}
        else INCOMPLETE
    )


async def _dry_run(
    options: argparse.Namespace,
    store: Store,
    selection: Selection,
    rules: ReplayRules,
) -> int:
    number = interrupted = bad = 0
    order = ReplayOrder(any_order=rules.any_order)
    async with (
        aclosing(store.letters(LEFT)) as letters,
        aclosing(order.meant(letters, selection)) as meant,
    ):
        async for letter in meant:
            if number == options.limit:
                break
            number += 1
            interrupted += letter.may_be_delivered
            try:
                rules.item_of(letter)
            except RefusedLetter as error:
                bad += 1
                say(f"{letter.key} is refused: {text_of(error)}")
                order.stop(letter, text_of(error))
            except Exception as error:
                bad += 1
                why = f"cannot be decoded: {for_log(error)}"
                say(f"{letter.key} {why}")
                order.stop(letter, why)
    say(
        f"would send {number - bad} dead letters to {options.to or options.handler}; "
        f"{interrupted} of {number} may have been delivered already"
    )
    if not number and not order.held_back:
        await say_why_none(selection, store)
    say_stops(order)
    return INCOMPLETE if bad or order.held_back else OK
