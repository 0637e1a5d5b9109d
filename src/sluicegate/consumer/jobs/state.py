"""State of a partition, for the handlers and finalisers of its events.

1. A store belongs to one claim of one partition. It is used only in the partition's turns, which
   never run concurrently, so it needs no lock.
2. It is opened before the first event of the claim is handled, and dropped when the claim ends.
3. Keys are text, and values are any objects that the backend can store. `range` uses the order of
   the text.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..._core import checks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..._core.source import TopicPartition


@runtime_checkable
class StateStore(Protocol):
    """The state of one partition."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key."""
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


_ABSENT: Any = object()


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
        """Return the value of a key. Raises `ConfigError` for a key that is not text."""
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
        """Drop the store, unless it is kept."""
        if not self._keep:
            self.stores.pop(partition, None)
