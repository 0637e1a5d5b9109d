"""An explanation of an empty selection: a census of the letters in the store.

A mistyped name must not look like an empty store.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import aclosing
from dataclasses import fields
from typing import TYPE_CHECKING

from ...letters.letter import STATES, Selection
from .output import say

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from ...letters.letter import Letter
    from ...letters.store import Store

_MOST_VALUES = 10
_NAMED = ("batcher", "tenant", "error_type", "error_class", "code")


class Census:
    """Counts of a store's letters by the conditions of a selection."""

    def __init__(self, selection: Selection) -> None:
        self._alone = dict(_conditions(selection))
        self._hits: Counter[str] = Counter()
        self._states: Counter[str] = Counter()
        self._values: dict[str, Counter[str]] = {name: Counter() for name in _NAMED}
        self._times: list[datetime] = []
        """The earliest and the latest of the letters' last attempts."""

    async def take(self, store: Store) -> None:
        """Count every letter of the store."""
        async with aclosing(store.letters(Selection())) as letters:
            async for letter in letters:
                self.count(letter)

    def count(self, letter: Letter) -> None:
        """Count a letter."""
        self._states[letter.state] += 1
        for name, condition in self._alone.items():
            self._hits[name] += condition.has(letter)
        for name, values in self._values.items():
            values[_shown(getattr(letter, name))] += 1
        if letter.cause_type:
            self._values["error_type"][letter.cause_type] += 1
        times = [*self._times, letter.last_at]
        self._times = [min(times), max(times)]

    def lines(self) -> Iterator[str]:
        """Explain why nothing is selected, line by line."""
        if not self._states:
            yield "there are no dead letters"
            return
        counts = ", ".join(f"{self._states[each]} {each}" for each in STATES if self._states[each])
        yield f"none of {self._states.total()} dead letters is selected: {counts}"
        for name, condition in self._alone.items():
            if not self._hits[name]:
                yield f"none has {self._told(name, getattr(condition, name))}"

    def _told(self, name: str, value: object) -> str:
        if name in self._values:
            found = [each or "''" for each, _ in self._values[name].most_common(_MOST_VALUES)]
            more = ", ..." if len(self._values[name]) > _MOST_VALUES else ""
            return f"{_option(name)} {value}; there are {', '.join(found)}{more}"
        if name in {"since", "until"}:
            first, last = (each.isoformat(timespec="seconds") for each in self._times)
            return f"a last attempt that matches {_option(name)}; they are from {first} to {last}"
        if name == "letters":
            return "an own key that matches --letter"
        return f"{_option(name)} {value!r}"


def _conditions(selection: Selection) -> Iterator[tuple[str, Selection]]:
    """Yield each condition except the states, as a separate selection."""
    for field in fields(selection):
        value = getattr(selection, field.name)
        if field.name not in {"states", "only"} and value not in {None, ()}:
            yield field.name, Selection(**{field.name: value})


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


async def say_why_none(selection: Selection, store: Store) -> None:
    """Print why nothing is selected."""
    census = Census(selection)
    await census.take(store)
    for line in census.lines():
        say(line)
