"""The slots held by this process, and the stored positions of the subscription.

1. Each message before `cursor` has been delivered, or is not in the selection.
2. `told` is the offset reported to the consumer. It never exceeds the last visible message, so that
   nothing is skipped if a server restarts and has lost unwritten messages.
3. `stored` is the last known stored position. After an attempt without a response, the position of
   the attempt may be stored instead.
4. A claim is valid for the time of a lease after its lock was taken or extended.
5. The positions that a claim skips are known from its start. More may be added. If a position that
   may already have been skipped has to be delivered after all, the claim begins again.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ..._core.errors import ConfigError
from ..._core.logs import for_log, log_safely
from ..._core.source import TopicPartition
from ..._core.subscriptions import Move, SkipsLocked
from .selection import StreamSelection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from ..._core.source import Position, PositionStore, SourceClaim
    from ..._core.subscriptions import Subscribed, SubscriptionState
    from .selection import SelectedLog

_DELETED = (
    "the subscription %r no longer exists: it was deleted while this process served it. Start "
    "the process again to create it anew"
)
_ANOTHER = (
    "the subscription %r reads %s, not %s: use another name for a subscription of another selection, "
    "or delete this one first with `sluicegate stream delete`"
)
_BEYOND = (
    "slot %d of the subscription %r has the stored position %d, but the last position of the log is "
    "%d: the log was restored from an older copy, or is a different one. "
)
_RESET = (
    "Reset the subscription with `sluicegate stream reset` to the position where it should continue"
)
_DELETE = "Delete that position in the destination, so that the subscription's own one is used"
_NOT_COPIED = "%s: positions are stored, but not copied to the subscription (%s)"
logger = logging.getLogger("sluicegate.postgres")


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
        """The positions that attempts without a response may have stored."""

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

    def record(self, position: Position) -> None:
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


class StoredSlots:
    """Reads and moves the stored positions: the subscription's own, or those of a store, which take
    precedence.

    1. A move states the position that it starts from. If it is refused, another process or an
       operator has moved the slot, and its claim is lost.
    2. After an attempt without a response, the position is read before the next move.
    3. With a position store, the subscription's own positions are copies, for tools that show the
       lag, and for the order in which slots are claimed. A failed copy is only logged.
    """

    def __init__(
        self,
        name: str,
        selection: SelectedLog,
        last_position: Callable[[], Awaitable[int]],
        state: SubscriptionState,
        store: PositionStore | None,
    ) -> None:
        self._name = name
        self._selection = selection
        self._last_position = last_position
        self._state = state
        self._store = store
        self._earlier: frozenset[int] = frozenset()

    @property
    def are_elsewhere(self) -> bool:
        """Whether the positions are in a store."""
        return self._store is not None

    async def read(self) -> Subscribed:
        """Read the subscription. Raises `ConfigError` if it was deleted or has a different
        selection, and the errors of the state.
        """
        found = await self._state.read(self._name)
        if found is None:
            raise ConfigError(_DELETED % self._name)
        if found.selection != self._selection.text:
            told = (self._name, _readable(found.selection), self._selection)
            raise ConfigError(_ANOTHER % told)
        if found.earlier == self._earlier:  # the same object, for fast comparisons
            return replace(found, earlier=self._earlier)
        self._earlier = found.earlier
        return found

    def check(self, positions: Mapping[int, Position], last: int, remedy: str = _RESET) -> None:
        """Raise `ConfigError` for a position beyond the log: new messages would be taken for read
        ones.
        """
        for slot, position in positions.items():
            if position.offset > last + 1:
                raise ConfigError(_BEYOND % (slot, self._name, position.offset, last) + remedy)

    async def starts(self, slots: Collection[int]) -> dict[int, SlotStart]:
        """Read the starting points for claims of these locked slots.

        Raises `ConfigError` for a position of the store beyond the log.
        """
        partitions = {TopicPartition(self._selection.topic, slot): slot for slot in slots}
        taken: Mapping[TopicPartition, Position] = {}
        if self._store is not None:
            taken = await self._store.take(list(partitions))
            last = await self._last_position()
            self.check({partitions[each]: at for each, at in taken.items()}, last, _DELETE)
        found = await self.read()
        return {
            slot: SlotStart(taken.get(each, found.positions[slot]), found.earlier)
            for each, slot in partitions.items()
        }

    async def store(
        self, positions: Mapping[HeldSlot, Position]
    ) -> tuple[list[HeldSlot], list[HeldSlot]]:
        """Store positions in one attempt; return the stored and the refused slots.

        A slot that another session has locked is neither: its position may be stored later.
        """
        if self._store is None:
            return await self._move(positions)
        wanted = {held.claim.partition: position for held, position in positions.items()}
        told = await self._store.store(wanted)
        stored = {held: at for held, at in positions.items() if held.claim.partition in told}
        try:
            if stored and not self._store.keeps_group_offsets:
                await self._move(stored)
        except Exception as error:
            log_safely(logger, logging.DEBUG, _NOT_COPIED, self._name, for_log(error))
        return list(stored), []

    async def _move(
        self, positions: Mapping[HeldSlot, Position]
    ) -> tuple[list[HeldSlot], list[HeldSlot]]:
        refused = await self._resolve([held for held in positions if held.attempts])
        moves = {
            held.slot: held.attempt(position)
            for held, position in positions.items()
            if held not in refused
        }
        done: Collection[int] = ()
        locked: Collection[int] = ()
        if isinstance(self._state, SkipsLocked):
            done, locked = await self._state.try_store(self._name, moves)
        elif moves:
            done = await self._state.store(self._name, moves)
        stored = [held for held in positions if held.slot in done]
        for held in positions:
            if held.slot in done:
                held.record(positions[held])
            elif held.slot in locked:
                held.record(held.stored)
        refused = [held for held in positions if held.slot not in {*done, *locked}]
        return stored, refused

    async def _resolve(self, doubtful: Collection[HeldSlot]) -> list[HeldSlot]:
        """Find out what attempts without a response have stored; return slots moved by others."""
        if not doubtful:
            return []
        now = (await self.read()).positions
        for held in doubtful:
            if self.are_elsewhere or held.accepts(now[held.slot]):
                held.record(now[held.slot])
        return [held for held in doubtful if held.attempts]

    def release(self, slots: Collection[int]) -> None:
        """Forget these slots, whose claims have ended."""
        if self._store is not None:
            topic = self._selection.topic
            self._store.release([TopicPartition(topic, slot) for slot in slots])


def _readable(selection: str) -> str:
    try:
        return str(StreamSelection.parse(selection))
    except ValueError:
        return selection  # from a later release, or from a custom state
