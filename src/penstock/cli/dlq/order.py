"""Order per key on the way back: a letter goes only behind the letters of its key that came before
it. Pure.

1. A letter that comes back no further (it fails again, or cannot be decoded) *stops* its key: what
   came after it is held back.
2. So does a letter that was not meant: what came after it would overtake it.
3. Keys of different tenants and batchers are different. A letter without a key stands for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ...letters.letter import Lane, Letter, Selection


@dataclass(slots=True)
class Stop:
    """Where a key has stopped."""

    letter: str
    why: str
    was_meant: bool
    behind: int = 0
    """How many letters that were meant are held back."""


class KeyOrder:
    """What may go, while letters are looked at in their order. With `any_order` all of it."""

    def __init__(self, *, any_order: bool) -> None:
        self.any_order = any_order
        self.stops: dict[Lane, Stop] = {}

    @property
    def held_back(self) -> int:
        """How many letters were meant and may not go."""
        return sum(stop.behind for stop in self.stops.values())

    def lane(self, letter: Letter) -> Lane | None:
        """What the letter's order is kept in."""
        return None if self.any_order else letter.lane

    @property
    def told(self) -> list[tuple[Lane, Stop]]:
        """Which keys have stopped, as far as it matters to what was meant."""
        return [(lane, stop) for lane, stop in self.stops.items() if stop.was_meant or stop.behind]

    def stop(self, letter: Letter, why: str, *, was_meant: bool = True) -> None:
        """This letter stays: what comes after it in its lane may not go."""
        lane = self.lane(letter)
        if lane is not None and lane not in self.stops:
            self.stops[lane] = Stop(letter.key, why, was_meant)

    def holds(self, letter: Letter) -> bool:
        """Whether the letter may not go. To be asked until it is held, and not again: it is counted
        then.
        """
        lane = self.lane(letter)
        stop = None if lane is None else self.stops.get(lane)
        if stop is None:
            return False
        stop.behind += 1
        return True

    async def meant(
        self, letters: AsyncGenerator[Letter], selection: Selection
    ) -> AsyncGenerator[Letter]:
        """Those of all letters that are left which are meant, and may go as far as is known by
        then.
        """
        async for letter in letters:
            if selection.has(letter):
                if not self.holds(letter):
                    yield letter
            elif selection.has_key_of(letter):
                self.stop(letter, "it came before, and is not meant", was_meant=False)
