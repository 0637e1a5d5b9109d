"""The state and the locks of a subscription, as small replaceable protocols.

1. A log is divided into slots by the hash of each stream. A subscription has a position in each
   slot, which every process that serves it shares.
2. The first process to start fixes where the subscription begins; the others read that.
3. A slot is read only by the process that holds its lock. The lock does not protect the position:
   if a process has lost the lock without noticing, its store is refused, since each move contains
   the position that it follows.
4. Positions never decrease.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from .checks import bad

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from .source import Position

SLOTS = 256
"""The number of slots. Each message stores its slot, so the number never changes."""


def slot_lock(name: str, slot: int) -> str:
    """Return the name of the lock of a slot of the subscription `name`: `name/slot`."""
    return f"{name}/{slot}"


def locked_slot(lock: str) -> tuple[str, int]:
    """Return the subscription and slot of a lock. Raises `ConfigError` for any other lock name."""
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
    """The start of a subscription."""

    offsets: Mapping[int, int]
    """The first offset of each slot."""
    earlier: frozenset[int] = frozenset()
    """Later offsets that are nevertheless skipped, since their messages existed before."""
    selection: str = ""
    """The selection of messages, as text. Another selection needs another subscription."""
    point: str = ""
    """The start point in words, for operators."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A stored subscription."""

    positions: Mapping[int, Position]
    """The position of each slot."""
    earlier: frozenset[int] = frozenset()
    """As in its start."""
    selection: str = ""
    """As in its start."""
    is_paused: bool = False
    paused_slots: frozenset[int] = field(default_factory=frozenset[int])
    missed: int = 0
    """Messages that were deleted before they were handled, as far as they are counted."""


@runtime_checkable
class SubscriptionState(Protocol):
    """Stores the positions of subscriptions. Methods suspend, and raise errors of the store.

    A cancelled call may have taken effect. An implementation with `async with` is open while it is
    used.
    """

    async def initialize(self, name: str, start: SubscriptionStart) -> bool:
        """Store the start of a subscription atomically, unless it already has one.

        Returns False if it has one: another process was first.
        """
        ...

    async def read(self, name: str) -> Subscribed | None:
        """Return the stored subscription; `None` before `initialize`."""
        ...

    async def store(self, name: str, moves: Mapping[int, Move]) -> Collection[int]:
        """Move slots whose stored position is still the previous one; return the moved slots.

        A move to an earlier offset is also refused. If the same object keeps positions and locks,
        so is a move of a slot whose lock has another holder.
        """
        ...


@runtime_checkable
class SubscriptionLocks(Protocol):
    """Named locks, some of them held by this object. Methods suspend, but never wait for a lock.

    The lock of a slot (0 to 255) of a subscription is named `SUBSCRIPTION/SLOT`. Locks with an
    `async def members(self, name: str) -> int` count the live processes on a subscription, which
    then share the slots evenly; the call registers this process.

    An implementation with `async with` is open while it is used; its exit releases its locks.
    """

    @property
    def keep_every(self) -> float | None:
        """Seconds between calls of `keep`; `None` if locks do not expire."""
        ...

    async def lock(self, names: Collection[str]) -> Collection[str]:
        """Acquire the free ones of these locks; return their names. Locks are not reentrant."""
        ...

    async def keep(self, names: Collection[str]) -> Collection[str]:
        """Extend these locks; return the ones that are still held."""
        ...

    async def unlock(self, names: Collection[str]) -> None:
        """Release these locks; locks that are not held are ignored."""
        ...


@runtime_checkable
class SkipsLocked(Protocol):
    """State and locks of one place that skip slots locked by another session, such as an operator's.

    A skipped slot has neither a new position nor a longer lease. Both can be tried again.
    """

    async def try_store(
        self, name: str, moves: Mapping[int, Move]
    ) -> tuple[Collection[int], Collection[int]]:
        """Like `SubscriptionState.store`; return the moved slots, and the skipped ones."""
        ...

    async def try_keep(self, names: Collection[str]) -> tuple[Collection[str], Collection[str]]:
        """Like `SubscriptionLocks.keep`; return the extended locks, and the skipped ones."""
        ...


@runtime_checkable
class CountsMembers(Protocol):
    """Locks that count the competing processes, so that these can share the slots evenly."""

    async def members(self, name: str) -> int:
        """Return the number of live processes on a subscription; the call registers this one."""
        ...
