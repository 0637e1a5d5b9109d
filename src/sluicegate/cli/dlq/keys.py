"""Report keys on the command line that no letter has."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from ...letters.letter import Selection
from .output import say

if TYPE_CHECKING:
    from ...letters.store import Store


async def report_missing_keys(selection: Selection, store: Store) -> bool:
    """Print selected keys that no letter of any state has; return whether there are any."""
    if not selection.keys:
        return False
    others = {key: key[1:] if key.startswith(":") else f":{key}" for key in selection.keys}
    found: set[str | None] = set()
    async with aclosing(store.letters(Selection(keys=(*others, *others.values())))) as letters:
        async for letter in letters:
            found.add(letter.item_key)
    for key in set(others) - found:
        say(
            f"no dead letter has the key {key!r}"
            + (f"; some have {others[key]!r}" if others[key] in found else "")
        )
    return not found.issuperset(others)
