"""State of a partition, for the handlers and finalisers of its events.

1. A store belongs to one claim of one partition. It is used only in the partition's turns, which
   never run concurrently, so it needs no lock.
2. It is opened before the first event of the claim is handled, and dropped when the claim ends. A
   failed opening is retried, and does not count as a failed attempt of an event.
3. Keys are text, and values are any objects that the backend can store. `range` uses the order of
   the text.

A `TurnStore` saves its changes together with the position of its partition.

4. The changes of a turn are atomic: a turn that fails leaves the store unchanged.
5. They are saved with the first position that passes their event, in one transaction. After a crash
   the state is that of the events before the position, and the other events run again.
6. Such a claim therefore has no map of completed events beyond its position. Its store is opened
   before anything is fetched for it.
7. When too many changes wait to be stored, no later event of the partition begins until they are
   stored.
8. A store that has lost its position gets no further turns; see `event_run`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..._core import checks
from ..._core.clock import Signal
from ..._core.errors import ConfigError, PositionLost
from ..._core.logs import for_log
from ..handling.results import Nak, Terminate, ToDeadLetter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Mapping

    from ..._core.source import Source, TopicPartition
    from ..lanes.message import Message
    from ..progress.claim import Claim

_ABSENT: Any = object()

FAILED = (Nak, Terminate, ToDeadLetter)
"""Results of a turn that has failed, and changes nothing."""


@runtime_checkable
class StateStore(Protocol):
    """The state of one partition."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key; `default` if there is none."""
        ...

    def put(self, key: str, value: Any) -> None:
        """Set the value of a key."""
        ...

    def delete(self, key: str) -> bool:
        """Remove a key; return whether it existed."""
        ...

    def range(
        self, start: str = "", end: str | None = None, *, limit: int | None = None
    ) -> Iterator[tuple[str, Any]]:
        """Return the keys from `start` (inclusive) to `end` (exclusive) with their values, in
        order; at most `limit`.

        A snapshot: later changes are not included.
        """
        ...

    def __len__(self) -> int: ...


def _check_text(key: object) -> None:
    """Raise `ConfigError` for a key of bytes, for example, which no entry has."""
    if not isinstance(key, str):
        checks.text("key", key, empty=True)


class StateBackend(Protocol):
    """The origin of a consumer's stores."""

    async def open(self, partition: TopicPartition) -> StateStore:
        """Return the store of a partition whose claim begins, with its stored content. Suspends."""
        ...

    def close(self, partition: TopicPartition) -> None:
        """Drop the store, since its claim has ended."""


class MemoryStore:
    """State in memory: a dict, and a sorted list of keys after the first `range`."""

    def __init__(self, entries: Mapping[str, Any] | None = None) -> None:
        self._entries: dict[str, Any] = dict(entries or {})
        self._sorted: list[str] | None = None

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key; `default` if there is none. Raises `ConfigError` for a key
        that is not text.
        """
        value = self._entries.get(key, _ABSENT)
        if value is not _ABSENT:
            return value
        _check_text(key)
        return default

    def put(self, key: str, value: Any) -> None:
        """Set the value of a key. Raises `ConfigError` for a key that is not text."""
        if key not in self._entries:
            checks.text("key", key, empty=True)
            if self._sorted is not None:
                insort(self._sorted, key)
        self._entries[key] = value

    def delete(self, key: str) -> bool:
        """Remove a key; return whether it existed. Raises `ConfigError` for a key that is not text."""
        if key not in self._entries:
            _check_text(key)
            return False
        del self._entries[key]
        if self._sorted is not None:
            del self._sorted[bisect_left(self._sorted, key)]
        return True

    def range(
        self, start: str = "", end: str | None = None, *, limit: int | None = None
    ) -> Iterator[tuple[str, Any]]:
        """Return the keys from `start` (inclusive) to `end` (exclusive) with their values, in
        order; at most `limit`.
        """
        if self._sorted is None:
            self._sorted = sorted(self._entries)
        first = bisect_left(self._sorted, start)
        last = len(self._sorted) if end is None else bisect_left(self._sorted, end)
        if limit is not None:
            last = min(last, first + limit)
        return iter([(key, self._entries[key]) for key in self._sorted[first:last]])

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"MemoryStore({len(self)} keys)"


class MemoryState:
    """Stores in memory, lost with their claims: for caches and tests.

    With `keep`, the store of a partition is kept for its next claim in this process.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._keep = checks.flag("keep", keep)
        self.stores: dict[TopicPartition, MemoryStore] = {}
        """The stores by partition."""

    async def open(self, partition: TopicPartition) -> StateStore:
        """Return an empty store, or the kept one."""
        return self.stores.setdefault(partition, MemoryStore())

    def close(self, partition: TopicPartition) -> None:
        """Drop the partition's store, unless the state has `keep=True`."""
        if not self._keep:
            self.stores.pop(partition, None)


@runtime_checkable
class TurnStore(Protocol):
    """The state of one partition, changed in turns."""

    def begin_turn(self, offset: int | None) -> None:
        """Begin the turn of the event with this offset; `None` for an interjection."""

    def end_turn(self, *, counts: bool) -> None:
        """End the turn; its changes are undone unless it `counts`."""

    def bound(self, offset: int) -> int:
        """Return the last position up to `offset` that can be stored with the changes before it."""
        ...

    def owes(self, offset: int) -> bool:
        """Return whether changes wait to be stored with this position."""
        ...

    @property
    def is_crowded(self) -> bool:
        """Whether too many changes wait to be stored."""
        ...

    @property
    def loss(self) -> Exception | None:
        """Why its changes can no longer be saved; `None` if they can."""
        ...


@runtime_checkable
class PositionedBackend(StateBackend, Protocol):
    """A backend of `TurnStore`s."""

    def check_source(self, source: Source) -> None:
        """Raise `ConfigError` for a source that does not leave its positions to this backend."""

    def progress(self, partition: TopicPartition) -> str:
        """Return the progress of reading a state, for operators; empty while none is being read."""
        ...


async def in_turn(store: TurnStore, offset: int | None, turn: Awaitable[object]) -> object:
    """Run a turn whose changes count unless it fails; return its result."""
    store.begin_turn(offset)
    counts = False
    try:
        result = await turn
        counts = not isinstance(result, FAILED) and not (result is None and _is_cut())
    finally:
        store.end_turn(counts=counts)
    return result


def _is_cut() -> bool:
    """Return whether this turn was cut; if it returned `None` nevertheless, it has failed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Stores:
    """The open stores."""

    def __init__(self, backend: StateBackend | None) -> None:
        self._backend = backend
        self._open: dict[TopicPartition, tuple[Claim, StateStore]] = {}
        self._turns: dict[Claim, TurnStore] = {}
        self._opening: dict[TopicPartition, asyncio.Lock] = {}
        self._failures: dict[Claim, Exception] = {}
        """The last error of each store that could not be opened."""

    @property
    def are_any(self) -> bool:
        """Whether there is state."""
        return self._backend is not None

    @property
    def are_positioned(self) -> bool:
        """Whether the state is stored together with the positions."""
        return isinstance(self._backend, PositionedBackend)

    async def prepare(self, claim: Claim) -> TurnStore | None:
        """Open the store of a claim whose turn begins; no effect if it is open. Returns the store
        if it is changed in turns, else `None`. Raises any exception of the backend, and
        `PositionLost`; the event is then retried.
        """
        if self._backend is None:
            return None
        if not self._is_open(claim):
            async with self._opening.setdefault(claim.partition, asyncio.Lock()):
                if not self._is_open(claim):  # another task has opened it meanwhile
                    await self._tried(claim, self._backend)
        turns = self._turns.get(claim)
        if turns is not None and turns.loss is not None:
            raise PositionLost(str(turns.loss))
        return turns

    def _is_open(self, claim: Claim) -> bool:
        known = self._open.get(claim.partition)
        return known is not None and known[0] is claim

    async def _tried(self, claim: Claim, backend: StateBackend) -> None:
        try:
            await self._prepare(claim, backend)
        except Exception as error:
            self._failures[claim] = error
            raise
        self._failures.pop(claim, None)

    def progress_of(self, claim: Claim) -> str:
        """Return the progress of reading a claim's state, for operators; empty if there is none."""
        told: list[str] = []
        if isinstance(self._backend, PositionedBackend):
            told.append(self._backend.progress(claim.partition))
        if (error := self._failures.get(claim)) is not None:
            told.append(f"the last try failed: {for_log(error)}")
        return "; ".join(filter(None, told))

    async def _prepare(self, claim: Claim, backend: StateBackend) -> None:
        if claim.partition in self._open:
            self._drop(claim.partition)
        store = await backend.open(claim.partition)
        self._open[claim.partition] = claim, store
        if isinstance(store, TurnStore):
            claim.keep_with(store)
            self._turns[claim] = store

    def losses(self) -> dict[Claim, Exception]:
        """Return the claims that have lost their positions, with the reasons."""
        lost = {claim: store.loss for claim, store in self._turns.items()}
        failed = {
            claim: error
            for claim, error in self._failures.items()
            if isinstance(error, PositionLost)
        }
        return {
            claim: error
            for claim, error in {**failed, **lost}.items()
            if error is not None and not claim.is_closing
        }

    def of(self, partition: TopicPartition) -> StateStore:
        """Return the store of a partition. Raises `ConfigError` without a backend."""
        if self._backend is None:
            raise ConfigError("there is no state: pass state=... to run_events")
        return self._open[partition][1]

    def close_ended(self) -> None:
        """Drop the stores of claims that have ended."""
        for partition, (claim, _) in [*self._open.items()]:
            if claim.is_closed:
                self._drop(partition)
        for claim in [each for each in self._failures if each.is_closed]:
            del self._failures[claim]

    def close(self) -> None:
        """Drop all stores."""
        for partition in [*self._open]:
            self._drop(partition)

    def _drop(self, partition: TopicPartition) -> None:
        claim, _ = self._open.pop(partition)
        self._turns.pop(claim, None)
        if self._backend is not None:
            self._backend.close(partition)


class Crowded:
    """The lanes held until changes of their partitions are stored."""

    def __init__(self) -> None:
        self.began = Signal()
        self._held: dict[Claim, tuple[Message, TurnStore]] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def hold(self, message: Message, store: TurnStore) -> bool:
        """Record that the lane of this event is to be held; return false if it already is."""
        if message.claim in self._held:
            return False
        self._held[message.claim] = message, store
        self.began.fire()
        return True

    def take_free(self) -> list[Message]:
        """Remove and return the events whose lanes may continue."""
        free = [
            claim
            for claim, (_, store) in self._held.items()
            if claim.is_closed or not store.is_crowded
        ]
        return [self._held.pop(claim)[0] for claim in free]
