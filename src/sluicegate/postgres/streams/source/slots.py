"""The slots held by this process, each with its cursor, reported offset and stored position.

No clock, no I/O.

1. Each message before `cursor` has been delivered, or is not in the selection.
2. `told` is the offset reported to the consumer. It never exceeds the last visible message, so that
   nothing is skipped if a server restarts and has lost unwritten messages.
3. `stored` is the last known stored position. After an attempt without an answer, the position of
   the attempt may be stored instead.
4. A claim is valid for the time of a lease after its lock was taken or extended.
5. The positions that a claim skips are known from its start. More may be added. If a position that
   may already have been skipped has to be delivered after all, the claim begins again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...._core.subscriptions import Move

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ...._core.source import Position, SourceClaim


class SlotStart(NamedTuple):
    """The starting point of a claim."""

    position: Position
    earlier: frozenset[int] = frozenset()
    """Later positions that are not delivered, read together with it."""


class HeldSlot:
    """A slot with an open claim."""

    __slots__ = (
        "attempts",
        "claim",
        "cursor",
        "earlier",
        "kept_at",
        "since",
        "slot",
        "stored",
        "told",
    )

    def __init__(
        self, slot: int, claim: SourceClaim, at: SlotStart, since: float, kept_at: float
    ) -> None:
        start = at.position
        self.earlier = at.earlier
        """The positions that this claim does not deliver."""
        self.slot = slot
        self.claim = claim
        self.since = since
        """The time at which it was claimed."""
        self.kept_at = kept_at
        """The time of the last request that took or extended its lock."""
        self.cursor = start.offset
        self.told = start.offset
        self.stored = start
        self.attempts: list[Position] = []
        """The positions that attempts without an answer may have stored."""

    def keep(self, asked_at: float) -> None:
        """Record that its lock was extended."""
        self.kept_at = max(self.kept_at, asked_at)

    def leave_out(self, earlier: frozenset[int]) -> bool:
        """Replace the positions to skip. Returns false if the claim may already have skipped a
        position that is to be delivered now.
        """
        if earlier is not self.earlier:
            if any(offset >= self.stored.offset for offset in self.earlier - earlier):
                return False
            self.earlier = earlier
        return True

    def read_to(self, offset: int) -> None:
        """Record that each message before this offset is delivered."""
        self.cursor = max(self.cursor, offset)

    def tell(self, most: int) -> int:
        """Return the offset to report to the consumer, up to `most`, and record it."""
        self.told = max(self.told, min(self.cursor, most))
        return self.told

    def rewind(self) -> None:
        """Read again from the reported offset on."""
        self.cursor = self.told

    def doubt(self) -> None:
        """Mark the stored position as unknown: it is read before the next move."""
        self.attempts.append(self.stored)

    def attempt(self, position: Position) -> Move:
        """Record an attempt to store a position; return the move."""
        self.attempts.append(position)
        return Move(self.stored, position)

    def answered(self, position: Position) -> None:
        """Record the position that is stored now."""
        self.stored = position
        self.attempts = []

    def accepts(self, position: Position) -> bool:
        """Whether this claim can have stored this position."""
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
        """Return a held slot."""
        return self._held[slot]

    def of(self, claim: SourceClaim) -> HeldSlot | None:
        """Return the slot of an open claim."""
        held = self._held.get(claim.partition.partition)
        return held if held is not None and held.claim is claim else None

    def holds(self, held: HeldSlot) -> bool:
        """Whether this claim is open."""
        return self._held.get(held.slot) is held

    def among(self, claims: Iterable[SourceClaim]) -> list[HeldSlot]:
        """Return the slots of the open claims among these, in order."""
        return [held for claim in claims if (held := self.of(claim)) is not None]

    def begin(
        self,
        claims: Sequence[SourceClaim],
        starts: Mapping[int, SlotStart],
        since: float,
        kept_at: float,
    ) -> None:
        """Add the slots of new claims, whose locks were requested at `kept_at`."""
        for claim in claims:
            slot = claim.partition.partition
            self._held[slot] = HeldSlot(slot, claim, starts[slot], since, kept_at)

    def end(self, slots: Collection[HeldSlot]) -> list[HeldSlot]:
        """Remove the slots whose claims are open; return them."""
        ended = [held for held in slots if self.holds(held)]
        for held in ended:
            del self._held[held.slot]
        return ended

    def rewind(self) -> None:
        """Read all slots again from their reported offsets on."""
        for held in self._held.values():
            held.rewind()
