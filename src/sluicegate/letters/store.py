"""The contract of a store of dead letters, and the notes of a replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .letter import INTERRUPTED, PENDING, REPLAYED

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from types import TracebackType
    from typing import Any, Self

    from .letter import Letter, Selection


MOST_TOLD = 10


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
