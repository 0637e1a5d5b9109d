"""Base of the stores that keep the notes of replays beside the letters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from .._core.values.encoding import to_json
from .notes import Notes
from .store import StoreError, Unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .store import Ending


class NotedStore(ABC):
    """Store of dead letters whose replays are noted beside them, a line of JSON for each step."""

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
            self._bad_notes.add(place, "not a note of a replay")

    def _need_notes(self) -> None:
        """Refuse to continue without the complete notes of earlier replays."""
        if self._bad_notes.count:
            places = "; ".join(self._bad_notes.first)
            raise StoreError(
                f"{places}; it may concern any letter, so nothing is sent or removed; repair "
                f"or remove that {self._unit}"
            )
