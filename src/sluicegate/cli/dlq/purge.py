"""`sluicegate dlq purge`: remove letters, with a confirmation if some were never replayed.

The confirmation runs outside the event loop, where Ctrl-C ends it. Only the letters that it counted
are removed: others may arrive meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...letters.letter import REPLAYED, STATES
from ..confirm import confirmed
from ..exits import BAD_USE, INCOMPLETE, OK
from .arguments import selection_of
from .census import say_why_none
from .keys import report_missing_keys
from .output import say, say_unreadable
from .stores import store_of

if TYPE_CHECKING:
    import argparse

    from ...letters.letter import Selection


@dataclass(slots=True)
class _Found:
    """The letters to remove."""

    keys: set[str] = field(default_factory=set[str])
    states: Counter[str] = field(default_factory=Counter[str])

    def __str__(self) -> str:
        counts = ", ".join(f"{self.states[each]} {each}" for each in STATES if self.states[each])
        return f"{len(self.keys)} dead letters ({counts})"


def purge(options: argparse.Namespace) -> int:
    """Remove the selected letters; return the exit code. Raises `StoreError` and `UseError`."""
    selection = selection_of(options)
    found = asyncio.run(_look(options, selection))
    if isinstance(found, int):
        return found
    if set(found.states) - {REPLAYED} and not confirmed(
        f"remove {found} for good? Those that were not replayed exist nowhere else.",
        yes=options.yes,
    ):
        say("nothing was removed")
        return BAD_USE
    return asyncio.run(_remove(options, replace(selection, only=frozenset(found.keys))))


async def _look(options: argparse.Namespace, selection: Selection) -> _Found | int:
    """Return the letters to remove, or the exit code if there are none."""
    found = _Found()
    async with store_of(options.store, options.table, options.schema) as store:
        if await report_missing_keys(selection, store):
            return BAD_USE
        async with aclosing(store.letters(selection)) as letters:
            async for letter in letters:
                found.keys.add(letter.key)
                found.states[letter.state] += 1
        if found.keys and not options.dry_run:
            return found
        if found.keys:
            say(f"would remove {found}")
        else:
            await say_why_none(selection, store)
            say("nothing to remove")
        return INCOMPLETE if say_unreadable(store) else OK


async def _remove(options: argparse.Namespace, selection: Selection) -> int:
    async with store_of(options.store, options.table, options.schema) as store:
        say(f"removed {await store.purge(selection)} dead letters")
        return INCOMPLETE if say_unreadable(store) else OK
