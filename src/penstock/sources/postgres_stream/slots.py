"""The slots that this process holds, and how far each is read, told and stored. No clock, no I/O.

1. Each message before `cursor` has been delivered, or is not in the selection.
2. `told` is what the consumer has been told of that. It never lies beyond the last message that was
   visible, so that a server that comes back without what it had not written yet skips nothing.
3. `stored` is the stored position as far as known. After an attempt without an answer it may be
   that of the attempt.
4. What a claim leaves out is known from its start. More may be added; a claim that has to deliver
   what it may have passed over already begins again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..._core.subscriptions import Move

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ..._core.source import Position, SourceClaim


class SlotStart(NamedTuple):
    """Where a claim begins."""

    position: Position
    earlier: frozenset[int] = frozenset()
    """The positions behind it that are not delivered, read together with it."""


class HeldSlot:
    """A slot with an open claim."""

    __slots__ = ("attempts", "claim", "cursor", "earlier", "since", "slot", "stored", "told")

    def __init__(self, slot: int, claim: SourceClaim, at: SlotStart, since: float) -> None:
        start = at.position
        self.earlier = at.earlier
        """The positions that this claim does not deliver."""
        self.slot = slot
        self.claim = claim
        self.since = since
        """When it was claimed."""
        self.cursor = start.offset
        self.told = start.offset
        self.stored = start
        self.attempts: list[Position] = []
        """What attempts without an answer may have stored."""

    def leave_out(self, earlier: frozenset[int]) -> bool:
        """Leave out these positions instead of others; return whether the claim may go on, since it
        can have passed over none that is to be delivered.
        """
        if earlier is not self.earlier:
            if any(offset >= self.stored.offset for offset in self.earlier - earlier):
                return False
            self.earlier = earlier
        return True

    def read_to(self, offset: int) -> None:
        """Note that each message before this offset is delivered."""
        self.cursor = max(self.cursor, offset)

    def tell(self, most: int) -> int:
        """How far the consumer may be told, at most to `most`; note that it is."""
        self.told = max(self.told, min(self.cursor, most))
        return self.told

    def rewind(self) -> None:
        """Read again from where the consumer was told."""
        self.cursor = self.told

    def doubt(self) -> None:
        """Note that the stored position is not known: it is read before the next move."""
        self.attempts.append(self.stored)

    def attempt(self, position: Position) -> Move:
        """Note an attempt to store a position."""
        self.attempts.append(position)
        return Move(self.stored, position)

    def answered(self, position: Position) -> None:
        """Note the position that is stored now."""
        self.stored = position
        self.attempts = []

    def accepts(self, position: Position) -> bool:
        """Whether a position that was read is one that this claim can have stored."""
        return position == self.stored or position in self.attempts


class SlotBook:
    """The held slots of one subscription."""

    def __init__(self) -> None:
        self._held: dict[int, HeldSlot] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, slot: object) -> bool:
        return slot in self._held

    @property
    def all(self) -> list[HeldSlot]:
        """The held slots."""
        return list(self._held.values())

    def at(self, slot: int) -> HeldSlot:
        """A held slot."""
        return self._held[slot]

    def of(self, claim: SourceClaim) -> HeldSlot | None:
        """The slot of a claim that has not ended."""
        held = self._held.get(claim.partition.partition)
        return held if held is not None and held.claim is claim else None

    def holds(self, held: HeldSlot) -> bool:
        """Whether this claim has not ended."""
        return self._held.get(held.slot) is held

    def among(self, claims: Iterable[SourceClaim]) -> list[HeldSlot]:
        """The slots of those claims that have not ended, in order."""
        return [held for claim in claims if (held := self.of(claim)) is not None]

    def begin(
        self, claims: Sequence[SourceClaim], starts: Mapping[int, SlotStart], since: float
    ) -> None:
        """Hold the slots of new claims."""
        for claim in claims:
            slot = claim.partition.partition
            self._held[slot] = HeldSlot(slot, claim, starts[slot], since)

    def end(self, slots: Collection[HeldSlot]) -> list[HeldSlot]:
        """Remove those of these slots whose claims have not ended; return them."""
        ended = [held for held in slots if self.holds(held)]
        for held in ended:
            del self._held[held.slot]
        return ended

    def rewind(self) -> None:
        """Read all slots again from where the consumer was told."""
        for held in self._held.values():
            held.rewind()
