"""Notes of replays, stored with the dead letters: letters in flight and their outcomes. Pure.

An unreadable note may concern any letter. Listing ignores it. Replaying and purging are refused,
because a delivered letter might be sent again.
"""

from __future__ import annotations

import json
from datetime import UTC
from typing import TYPE_CHECKING, Any, cast

from .._core.values.encoding import to_json
from .letter import ERROR, INTERRUPTED, STATES, moment

if TYPE_CHECKING:
    from collections.abc import Collection

_TEXTS = ("replay", "outcome", *ERROR)
_MOST = 2**31 - 2


class Notes:
    """The notes on each letter, by the letter's own key."""

    def __init__(self) -> None:
        self.told: dict[str, dict[str, Any]] = {}

    @property
    def interrupted(self) -> set[str]:
        """Keys of the letters that were in flight when a replay was interrupted."""
        return {key for key, told in self.told.items() if told["state"] == INTERRUPTED}

    def learn_line(self, line: bytes) -> None:
        """Apply a line of the file. Raises `ValueError`, without effect, if it is not a note."""
        try:
            note = json.loads(line.decode())
        except RecursionError:
            raise ValueError("nested too deeply") from None
        _check(note)
        self.learn(note)

    def learn(self, note: dict[str, Any]) -> None:
        """Apply a note."""
        on_its_way = {"replay": note["replay"], "state": INTERRUPTED}
        for key in note.get("sending", ()):
            self.told[key] = {**self.told.get(key, {}), **on_its_way}
        for ending in note.get("endings", ()):
            self.told[ending["key"]] = {**self.told.get(ending["key"], {}), **ending}

    def lines_without(self, gone: Collection[str]) -> bytes:
        """Return the notes on all other letters, as lines."""
        left = [{**told, "key": key} for key, told in self.told.items() if key not in gone]
        return b"".join(
            to_json({"replay": told.get("replay"), "endings": [told]}) + b"\n" for told in left
        )


def _check(note: object) -> None:
    found = cast("dict[str, Any]", note) if isinstance(note, dict) else {}
    lists = [found.get("sending", []), found.get("endings", [])]
    is_one = (
        "replay" in found
        and isinstance(found["replay"], str | None)
        and all(isinstance(each, list) for each in lists)
    )
    if (
        not is_one
        or not all(isinstance(key, str) for key in lists[0])
        or not all(map(_is_ending, lists[1]))
    ):
        raise ValueError("not a note of a replay")


def _is_ending(ending: object) -> bool:
    if not isinstance(ending, dict):
        return False
    found = cast("dict[str, Any]", ending)
    attempts, last_at = found.get("attempts"), found.get("last_at")
    try:
        moment("2000-01-01" if last_at is None else last_at).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return False
    return (
        isinstance(found.get("key"), str)
        and found.get("state") in STATES
        and (attempts is None or (type(attempts) is int and 0 <= attempts <= _MOST))
        and all(isinstance(found.get(name), str | None) for name in _TEXTS)
    )
