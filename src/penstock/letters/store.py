"""Where dead letters are kept, and what a replay notes beside them."""

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
    """A store that cannot be used as it was named. The message says why."""


class Unreadable:
    """Records that the last look found and could not read."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []
        """Where the first of them are, and why they cannot be read."""

    def clear(self) -> None:
        """Another look begins."""
        self.count = 0
        self.first.clear()

    def add(self, place: str, why: str) -> None:
        """There is one; `why` holds nothing of its content."""
        self.count += 1
        if len(self.first) < MOST_TOLD:
            self.first.append(f"{place}: unreadable: {why}")

    def include(self, others: Unreadable) -> None:
        """There are these as well."""
        self.count += others.count
        self.first += others.first[: MOST_TOLD - len(self.first)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What a replay made of one letter."""

    key: str
    outcome: str
    state: str
    attempts: int | None = None
    """All of them, if one of this replay counted; else `None`, and the error is not told either."""
    error_type: str | None = None
    error_class: str | None = None
    message: str | None = None
    last_at: str | None = None

    @classmethod
    def state_for(cls, outcome: str, *, is_success: bool) -> str:
        """What it leaves a letter in: what may have been delivered is not pending any more."""
        if is_success:
            return REPLAYED
        return INTERRUPTED if outcome == "unknown" else PENDING

    def as_dict(self) -> dict[str, Any]:
        """What is known."""
        return {
            name: value
            for name in self.__dataclass_fields__
            if (value := getattr(self, name)) is not None
        }


class Store(Protocol):
    """Opened and closed by `async with`. Every method raises `StoreError` where the store cannot do
    it.
    """

    unreadable: Unreadable
    """The records that the last look found and could not read. They are left where they are."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def letters(self, selection: Selection) -> AsyncGenerator[Letter]:
        """The letters of now, interrupted ones first, then in the order in which they came, each
        once; what comes later is not seen.
        """
        ...

    async def hold(self) -> None:
        """Keep other replays away until the store is closed."""

    async def begin(self, replay: str, keys: Sequence[str]) -> None:
        """Note that these letters are on their way, before they are."""

    async def end(self, replay: str, endings: Sequence[Ending]) -> None:
        """Note what became of them."""

    async def purge(self, selection: Selection) -> int:
        """Remove letters for good; return how many."""
        ...
