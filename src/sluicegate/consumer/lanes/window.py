"""The number and size of the unsettled records of a consumer. Pure.

1. A record is inside from its delivery until it is settled: queued, running, batched or backing
   off.
2. Fetching stops at either limit, and resumes when both counts have fallen below `REFILL` of their
   limits. Without this hysteresis, a full consumer would pause and resume for each record.
3. An empty window accepts any record, so a record larger than `max_bytes` passes alone.
4. The size of a record is the length of its value, or the result of a function.
"""

from __future__ import annotations

from operator import attrgetter
from operator import index as whole
from typing import TYPE_CHECKING

from ..._core.checks import count
from ..._core.runtime.loops import Exit
from ..._core.source import UndecodableRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..._core.source import SourceRecord

REFILL = 0.75
"""The fraction of a limit below which fetching resumes."""

_value = attrgetter("value")


class Window:
    """The unsettled messages and their bytes, compared with the limits `max_messages` and
    `max_bytes`.

    Raises `ConfigError` for limits below 1.
    """

    __slots__ = (
        "_refill_bytes",
        "_taken",
        "bytes",
        "max_bytes",
        "max_messages",
        "refill_messages",
        "released",
    )

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = count("max_messages", max_messages)
        self.max_bytes = count("max_bytes", max_bytes)
        self.refill_messages = REFILL * max_messages
        """Fetching resumes below this number of messages, if the bytes permit it."""
        self._refill_bytes = REFILL * max_bytes
        self._taken = 0  # and not returned by `give`
        self.released = 0
        """Number of messages removed by `release`."""
        self.bytes = 0
        """Bytes of unsettled messages."""

    @property
    def messages(self) -> int:
        """Unsettled messages."""
        return self._taken - self.released

    def __repr__(self) -> str:
        return (
            f"<Window {self.messages:,} of {self.max_messages:,} messages, "
            f"{self.bytes:,} of {self.max_bytes:,} bytes>"
        )

    def take(self, messages: int, size: int) -> None:
        """Add messages with a total of `size` bytes. A fetch may exceed the limit in bytes, since
        its size is known only afterwards; if the size is known, `fits` checks it beforehand.
        """
        if messages < 0 or size < 0:
            message = f"take({messages}, {size}) of {self!r}"
            raise ValueError(message)
        self._taken += messages
        self.bytes += size

    def give(self, messages: int, size: int) -> None:
        """Remove messages with a total of `size` bytes. Raises `ValueError`, and changes nothing,
        if there are fewer.
        """
        if not 0 <= messages <= self.messages or not 0 <= size <= self.bytes:
            message = f"give({messages}, {size}) of {self!r}"
            raise ValueError(message)
        self._taken -= messages
        self.bytes -= size

    def release(self, size: int) -> None:
        """Remove one unsettled message. Like `give`, but unchecked, since it runs once per
        message.
        """
        self.released += 1
        self.bytes -= size

    def release_all(self, messages: int, size: int) -> None:
        """Like `release`, for several messages with a total of `size` bytes."""
        self.released += messages
        self.bytes -= size

    def fits(self, size: int) -> bool:
        """Return whether one more message of `size` bytes may be taken."""
        if not self.messages:
            return True
        return self.messages < self.max_messages and self.bytes + size <= self.max_bytes

    def fitting(self, sizes: Sequence[int]) -> int:
        """Return how many of the next messages, of these sizes, may be taken."""
        most = min(len(sizes), self.max_messages - self.messages)
        left = self.max_bytes - self.bytes
        if most == len(sizes) and sum(sizes) <= left:
            return most
        for before, size in enumerate(sizes[: max(most, 0)]):
            left -= size
            if left < 0:
                return before if before or self.messages else 1
        return max(most, 0)

    @property
    def room(self) -> int:
        """Number of messages that may be fetched: 0 if either limit is reached."""
        return 0 if self.is_full else self.max_messages - self.messages

    @property
    def room_bytes(self) -> int:
        """Bytes that may be fetched, at least 1: one record may exceed the limit."""
        return max(1, self.max_bytes - self.bytes)

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached, so that fetching stops."""
        return self.messages >= self.max_messages or self.bytes >= self.max_bytes

    @property
    def has_resumed(self) -> bool:
        """Whether fetching that was stopped at a limit may resume: both counts are below their
        refill levels.
        """
        return self.messages < self.refill_messages and self.bytes < self._refill_bytes


class RecordSizes:
    """Sizes of records. If the function fails for a record, its size is that of its value."""

    def __init__(self, size_of: Callable[[SourceRecord], int] | None) -> None:
        self._size_of = size_of
        self.errors: dict[int, BaseException] = {}
        """Errors of the function in the last call of `of`, by the record's offset."""

    def of(self, records: Sequence[SourceRecord]) -> Sequence[int]:
        """Return the sizes of records, in bytes."""
        self.errors.clear()
        if (size_of := self._size_of) is not None:
            return [self._measured(record, size_of) for record in records]
        try:
            return [*map(len, map(_value, records))]
        except TypeError:  # such as the value of a tombstone
            return [size_of_value(record.value) for record in records]

    def _measured(self, record: SourceRecord, size_of: Callable[[SourceRecord], int]) -> int:
        try:
            size = whole(size_of(record))
            if size < 0:
                raise ValueError(f"size_of returned {size}; it must be at least 0")
        except BaseException as error:
            if isinstance(error, Exit):
                raise
            if type(record) is UndecodableRecord:
                return size_of_value(record.value)
            self.errors[record.offset] = error
            return size_of_value(record.value)
        return size


def size_of_value(value: object) -> int:
    """Return the size of a value in bytes; 0 for a value without a length."""
    try:
        return len(value)  # type: ignore[arg-type]
    except TypeError:
        return 0
