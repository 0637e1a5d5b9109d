"""What a subscription needs to remember and to lock, in small parts that can be replaced.

1. A log is divided into slots by the hash of each stream. A subscription has a position in each
   slot, which every process that serves it shares.
2. The first process to start fixes where the subscription begins; the others find that.
3. A slot is read by the process that holds its lock, and by no other. The lock does not protect
   the position: a process that has lost it without noticing has its store refused, since a move
   names the position it starts from.
4. Positions never go back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from .checks import bad

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from .source import Position

SLOTS = 256
"""The number of slots. Kept with each message, so it never changes."""


def slot_lock(name: str, slot: int) -> str:
    """The name of the lock of a slot of the subscription `name`, which is what precedes the last
    `/`.
    """
    return f"{name}/{slot}"


def locked_slot(lock: str) -> tuple[str, int]:
    """The subscription and the slot of a lock. Raises `ConfigError` for the name of another lock."""
    name, _, slot = lock.rpartition("/")
    if not (name and slot.isdecimal() and int(slot) < SLOTS):
        raise bad("lock", lock, f"must be SUBSCRIPTION/SLOT, with a slot below {SLOTS}")
    return name, int(slot)


class Move(NamedTuple):
    """A position to store, and the one that it follows."""

    before: Position
    after: Position


@dataclass(frozen=True, slots=True)
class SubscriptionStart:
    """Where a subscription begins."""

    offsets: Mapping[int, int]
    """The first offset of each slot."""
    earlier: frozenset[int] = frozenset()
    """Offsets behind those that are not delivered all the same: they were there before."""
    selection: str = ""
    """What the subscription reads of the log, in words; another selection is another subscription."""
    point: str = ""
    """The start point in words, for operators."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A subscription as it is stored."""

    positions: Mapping[int, Position]
    """The position of each slot."""
    earlier: frozenset[int] = frozenset()
    """As in its start."""
    selection: str = ""
    """As in its start."""
    is_paused: bool = False
    paused_slots: frozenset[int] = field(default_factory=frozenset[int])
    missed: int = 0
    """Messages that were deleted before they had been handled, as far as that is counted."""


@runtime_checkable
class SubscriptionState(Protocol):
    """Keeps the positions of subscriptions. Methods suspend, and raise what the store raises.

    A cancelled call may have had its effect. One with `async with` is open while it is used.
    """

    async def initialize(self, name: str, start: SubscriptionStart) -> bool:
        """Store the start of a subscription that has none, at once or not at all.

        Returns whether it is stored now; False: another process was first.
        """
        ...

    async def read(self, name: str) -> Subscribed | None:
        """What is stored; `None` before `initialize`."""
        ...

    async def store(self, name: str, moves: Mapping[int, Move]) -> Collection[int]:
        """Move slots whose stored position is still the one before; return these slots.

        A move to an earlier offset is refused, too. So is one of a slot whose lock has another
        holder, where one object has positions and locks.
        """
        ...


@runtime_checkable
class SubscriptionLocks(Protocol):
    """Locks by name, of which this object holds some. Methods suspend, but never for a lock.

    One with `async with` is open while it is used, and its exit frees what it holds.
    """

    @property
    def keep_every(self) -> float | None:
        """Seconds between calls of `keep`; `None` if locks need none."""
        ...

    async def lock(self, names: Collection[str]) -> Collection[str]:
        """Take the locks of these names that are free; return them. Locks are not reentrant."""
        ...

    async def keep(self, names: Collection[str]) -> Collection[str]:
        """Extend these locks; return those that are still held."""
        ...

    async def unlock(self, names: Collection[str]) -> None:
        """Free these locks; those not held are ignored."""
        ...


@runtime_checkable
class CountsMembers(Protocol):
    """Locks that know how many processes compete for them, which share the slots evenly then."""

    async def members(self, name: str) -> int:
        """The number of live processes on a subscription, with this one; it counts by asking."""
        ...
