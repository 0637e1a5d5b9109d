"""Subscriptions in memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..._core import checks
from ..._core.source import Position
from ..._core.subscriptions import Subscribed, slot_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from datetime import timedelta
    from types import TracebackType
    from typing import Self

    from ..._core.clock import Clock
    from ..._core.subscriptions import Move, SubscriptionStart

LEASE = 30.0
"""Default lease in seconds."""


class _Lease(NamedTuple):
    epoch: int
    """Increased by each new holder."""
    holder: object
    until: float


@dataclass(slots=True)
class _Started:
    positions: dict[int, Position]
    start: SubscriptionStart


class _Place:
    """The state of all objects that share one memory."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.started: dict[str, _Started] = {}
        self.leases: dict[str, _Lease] = {}
        self.members: dict[str, dict[object, float]] = {}

    def holder(self, lock: str, now: float) -> object:
        """Return the holder of a lock; `None` if it is free."""
        lease = self.leases.get(lock)
        return None if lease is None or lease.until <= now else lease.holder


class MemorySubscriptions:
    """Positions and locks of subscriptions in this process, for tests and streams in memory.

    Each source has its own object; `shared_with` lets several objects share one memory. A lock is a
    lease: it expires after `lease` seconds unless it is extended. A store of a slot whose lock has
    passed to another object is refused. Safe for sources in several threads.

    Args:
        shared_with: another object whose positions and locks to share; default: none.
        lease: seconds until a lock expires after it was taken or extended; default 30.
        clock: the source of time; default: the loop's.

    Raises `ConfigError` for a bad argument. No method suspends.
    """

    def __init__(
        self,
        *,
        shared_with: MemorySubscriptions | None = None,
        lease: float | timedelta = LEASE,
        clock: Clock | None = None,
    ) -> None:
        if shared_with is not None and not isinstance(shared_with, MemorySubscriptions):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise checks.bad("shared_with", shared_with, "must be a MemorySubscriptions or None")
        self._place: _Place = _Place() if shared_with is None else shared_with._place  # noqa: SLF001
        self._lease = checks.seconds("lease", lease, usual=checks.LONG_TIMEOUT)
        self._clock = checks.checked_clock(clock)
        self._held: dict[str, int] = {}
        """The epochs of the locks taken by this object."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.unlock([*self._held])
        with self._place.turn:
            for members in self._place.members.values():
                members.pop(self, None)

    async def initialize(self, name: str, start: SubscriptionStart) -> bool:
        """Store the start of a subscription unless it exists; return whether it was stored."""
        checks.text("name", name)
        with self._place.turn:
            if name in self._place.started:
                return False
            positions = {slot: Position(offset) for slot, offset in start.offsets.items()}
            self._place.started[name] = _Started(positions, start)
            return True

    async def read(self, name: str) -> Subscribed | None:
        """Return a copy of the stored subscription; `None` before `initialize`."""
        with self._place.turn:
            found = self._place.started.get(name)
            if found is None:
                return None
            return Subscribed(
                {**found.positions}, earlier=found.start.earlier, selection=found.start.selection
            )

    async def store(self, name: str, moves: Mapping[int, Move]) -> Collection[int]:
        """Move slots of a subscription whose stored position is still the previous one.

        Returns the moved slots. Not moved: a slot whose position has changed, a move to an earlier
        offset, a slot whose lock has another holder or was lost here, and all slots of an unknown
        subscription. Does not suspend.
        """
        with self._place.turn:
            found = self._place.started.get(name)
            if found is None:
                return ()
            moved = {
                slot: move.after
                for slot, move in moves.items()
                if found.positions.get(slot) == move.before
                and move.after.offset >= move.before.offset
                and self._may_move(slot_lock(name, slot))
            }
            found.positions.update(moved)
            return [*moved]

    def _may_move(self, lock: str) -> bool:
        epoch = self._held.get(lock)
        if epoch is None:
            return self._place.holder(lock, self._clock.now()) is None
        return self._place.leases[lock].epoch == epoch

    @property
    def keep_every(self) -> float | None:
        """Seconds between calls of `keep`: a third of the lease."""
        return self._lease / 3

    async def lock(self, names: Collection[str]) -> Collection[str]:
        """Take each of these locks that is free; return the taken ones."""
        with self._place.turn:
            now = self._clock.now()
            free = [name for name in dict.fromkeys(names) if not self._place.holder(name, now)]
            for name in free:
                before = self._place.leases.get(name)
                epoch = 1 if before is None else before.epoch + 1
                self._place.leases[name] = _Lease(epoch, self, now + self._lease)
                self._held[name] = epoch
            return free

    async def keep(self, names: Collection[str]) -> Collection[str]:
        """Extend these locks; return those still held."""
        until = self._clock.now() + self._lease
        return self._change(names, lambda lease: lease._replace(until=until))

    async def unlock(self, names: Collection[str]) -> None:
        """Release these locks; locks that are not held are ignored."""
        for name in self._change(names, lambda lease: lease._replace(holder=None)):
            del self._held[name]

    def _change(self, names: Collection[str], change: Callable[[_Lease], _Lease]) -> list[str]:
        """Change the leases of the locks that are still held; return these locks."""
        held: list[str] = []
        with self._place.turn:
            for name in dict.fromkeys(names):
                lease = self._place.leases.get(name)
                if lease is not None and lease.epoch == self._held.get(name):
                    self._place.leases[name] = change(lease)
                    held.append(name)
                else:
                    self._held.pop(name, None)
        return held

    async def members(self, name: str) -> int:
        """Count the objects that called this for the subscription within the last lease."""
        with self._place.turn:
            now = self._clock.now()
            members = self._place.members.setdefault(name, {})
            members[self] = now + self._lease
            return sum(until > now for until in members.values())

    def __repr__(self) -> str:
        return f"MemorySubscriptions(lease={self._lease:g})"
