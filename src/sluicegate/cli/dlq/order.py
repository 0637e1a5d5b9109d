"""Order per key in a replay: no letter overtakes an earlier letter of its key. Pure.

1. A letter that stays in the store (it fails again, or cannot be decoded) *stops* its key: later
   letters of the key are held back.
2. A letter that is not selected also stops its key: later letters would overtake it.
3. Keys of different tenants and batchers are different. A letter without a key has no order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ...letters.letter import Letter, ReplayLane, Selection


@dataclass(slots=True)
class Stop:
    """The letter at which a key has stopped."""

    letter: str
    why: str
    was_meant: bool
    behind: int = 0
    """Number of selected letters that are held back."""

    def hold_one(self) -> None:
        """Count one more letter held back."""
        self.behind += 1


class ReplayOrder:
    """Decides which letters may be sent, in store order; with `any_order`, all of them."""

    def __init__(self, *, any_order: bool) -> None:
        self.any_order = any_order
        self.stops: dict[ReplayLane, Stop] = {}

    @property
    def held_back(self) -> int:
        """Number of selected letters that are held back."""
        return sum(stop.behind for stop in self.stops.values())

    def lane(self, letter: Letter) -> ReplayLane | None:
        """Return the letter's lane, or `None` if its order does not matter."""
        return None if self.any_order else letter.lane

    @property
    def relevant_stops(self) -> list[tuple[ReplayLane, Stop]]:
        """The stops at selected letters, or with selected letters behind them."""
        return [(lane, stop) for lane, stop in self.stops.items() if stop.was_meant or stop.behind]

    def stop(self, letter: Letter, why: str, *, was_meant: bool = True) -> None:
        """Stop the letter's lane: it stays in the store, and so do later letters."""
        lane = self.lane(letter)
        if lane is not None and lane not in self.stops:
            self.stops[lane] = Stop(letter.key, why, was_meant)

    def holds(self, letter: Letter) -> bool:
        """Return whether the letter is held back. Counts it, so call it once per held letter."""
        lane = self.lane(letter)
        stop = None if lane is None else self.stops.get(lane)
        if stop is None:
            return False
        stop.hold_one()
        return True

    async def meant(
        self, letters: AsyncGenerator[Letter], selection: Selection
    ) -> AsyncGenerator[Letter]:
        """Yield the remaining selected letters, except those held back so far."""
        async for letter in letters:
            if selection.has(letter):
                if not self.holds(letter):
                    yield letter
            elif selection.has_key_of(letter):
                self.stop(letter, "it is earlier, and is not selected", was_meant=False)
