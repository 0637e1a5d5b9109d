"""The contract of a store of dead letters, and the notes of replays, stored alongside the letters.

An unreadable note may concern any letter. Listing ignores it. Replaying and purging are refused,
because a delivered letter might be sent again.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from .._core.values.encoding import to_json
from .letter import ERROR, INTERRUPTED, PENDING, REPLAYED, STATES, moment

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Sequence
    from types import TracebackType
    from typing import Self

    from .letter import Letter, Selection


MOST_TOLD = 10

_TEXTS = ("replay", "outcome", *ERROR)
_MOST = 2**31 - 2
"""Maximum number of attempts in a note: one more still fits a 32-bit column."""


class StoreError(Exception):
    """A store that cannot be used as specified. The message gives the reason."""


class Unreadable:
    """The unreadable records of the last pass over a store."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []
        """Places and reasons of the first unreadable records."""

    def clear(self) -> None:
        """Start another pass."""
        self.count = 0
        self.first.clear()

    def add(self, place: str, why: str) -> None:
        """Count a record; `why` must not contain any of its content."""
        self.count += 1
        if len(self.first) < MOST_TOLD:
            self.first.append(f"{place}: unreadable: {why}")

    def include(self, others: Unreadable) -> None:
        """Add the counts and records of `others`."""
        self.count += others.count
        self.first += others.first[: MOST_TOLD - len(self.first)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The result of a replay for one letter."""

    key: str
    outcome: str
    state: str
    attempts: int | None = None
    """The total number of attempts, if this replay counts; else `None`, and the error is omitted
    too.
    """
    error_type: str | None = None
    error_class: str | None = None
    message: str | None = None
    cause_type: str | None = None
    code: str | None = None
    last_at: str | None = None

    @classmethod
    def state_for(cls, outcome: str, *, is_safe: bool) -> str:
        """Return the letter's state after `outcome`: after an unknown outcome it is no longer
        pending.
        """
        if is_safe:
            return REPLAYED
        return INTERRUPTED if outcome == "unknown" else PENDING

    def as_dict(self) -> dict[str, Any]:
        """Return the known fields."""
        return {
            name: value
            for name in self.__dataclass_fields__
            if (value := getattr(self, name)) is not None
        }


class Store(Protocol):
    """A store of dead letters, opened and closed by `async with`. Methods raise `StoreError`."""

    unreadable: Unreadable
    """The unreadable records of the last pass. They stay unchanged in the store."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def letters(self, selection: Selection) -> AsyncGenerator[Letter]:
        """Return the current letters, each once: interrupted ones first, then in the order of
        arrival.

        Letters stored later are not included.
        """
        ...

    async def hold(self) -> None:
        """Exclude other replays until the store is closed."""

    async def begin(self, replay: str, keys: Sequence[str]) -> None:
        """Record that these letters are in flight, before they are sent."""

    async def end(self, replay: str, endings: Sequence[Ending]) -> None:
        """Record their outcomes."""

    async def purge(self, selection: Selection) -> int:
        """Remove letters permanently; return their number."""
        ...


class NotedStore(ABC):
    """Store of dead letters whose replays are recorded alongside them, a line of JSON for each
    step.
    """

    _unit: ClassVar[str]
    """The unit of notes to repair or remove if one is unreadable: a line, an object."""

    def __init__(self) -> None:
        self._notes = Notes()
        self._bad_notes = Unreadable()
        self.unreadable = Unreadable()

    @abstractmethod
    async def _store_note(self, content: bytes) -> None:
        """Store a line of notes. Raises `StoreError` if the store is not held."""

    async def begin(self, replay: str, keys: Sequence[str]) -> None:
        """See `Store`."""
        await self._note({"replay": replay, "sending": list(keys)})

    async def end(self, replay: str, endings: Sequence[Ending]) -> None:
        """See `Store`."""
        await self._note({"replay": replay, "endings": [ending.as_dict() for ending in endings]})

    async def _note(self, note: dict[str, Any]) -> None:
        await self._store_note(to_json(note) + b"\n")
        self._notes.learn(note)

    def _forget_notes(self) -> None:
        self._notes = Notes()
        self._bad_notes.clear()

    def _learn(self, line: bytes, place: str) -> None:
        try:
            self._notes.learn_line(line)
        except ValueError:
            self._bad_notes.add(place, "not a note of a replay that this release knows")

    def _need_notes(self) -> None:
        """Refuse to continue without the complete notes of earlier replays."""
        if self._bad_notes.count:
            places = "; ".join(self._bad_notes.first)
            raise StoreError(
                f"{places}; it may concern any letter, so nothing is sent or removed; use "
                f"the release that wrote it, or repair or remove that {self._unit}"
            )


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
        found.keys() <= {"replay", "sending", "endings"}  # a later format has more
        and "replay" in found
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
