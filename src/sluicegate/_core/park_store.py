"""The contract of a store for parked records: poisoned records and the records behind them.

1. The records of one key of one group form a queue: first parked, first returned.
2. A record is parked before the position passes it; if the store loses it, it is not delivered
   again.
3. For one key, the caller makes one call at a time. A call that failed, or whose response was lost,
   may be repeated: a record is in its key's queue at most once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedRecord:
    """A poisoned record, or a record that waits behind a poisoned one of its key.

    It can be handled like a record of a source.
    """

    topic: str
    partition: int
    offset: int
    key: object
    """As the source delivered it: bytes, text or `None`. So is the value."""
    value: object
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp: int = 0
    """Milliseconds since the epoch."""
    reason: str
    """The reason for parking, as text."""
    error_type: str = ""
    """The class name of the poisoned record's error; empty for the records behind it, except for
    those that could not be decoded.
    """
    message: str = ""
    """The error's message."""
    attempts: int = 0
    """The number of failed attempts."""
    parked_at: datetime
    is_poison: bool = False
    """Whether it is the poisoned record itself."""

    @property
    def coordinates(self) -> str:
        """Topic, partition and offset, as `orders/3@1044`."""
        return f"{self.topic}/{self.partition}@{self.offset}"


@runtime_checkable
class ParkStore(Protocol):
    """Stores the parked records of consumers. A store with `async with` is open while it is used.

    `group` is the consumer's name in the store, `key` the text of an order key. Every method raises
    if the store cannot be reached; the call may still have taken effect.
    """

    @property
    def is_durable(self) -> bool:
        """Whether parked records survive this process."""
        ...

    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        """Append records to a key's queue, in order; they are stored when this returns.

        A record that is already in the queue (by topic, partition and offset) is unchanged. A
        cancelled call may have stored any number of records from the front.
        """

    async def keys(self, group: str) -> frozenset[str]:
        """Return the keys with parked records."""
        ...

    async def first(self, group: str, key: str, most: int) -> Sequence[ParkedRecord]:
        """Return the first `most` records of a key's queue, without removing them."""
        ...

    async def remove(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        """Remove records from a key's queue; records that are not in it are ignored."""

    async def counts(self, group: str) -> Mapping[str, int]:
        """Return the number of parked records by key, for operators."""
        ...


@runtime_checkable
class UnparkRequests(Protocol):
    """A park store that also stores requests of operators to unpark keys."""

    async def requests(self, group: str) -> frozenset[str]:
        """Return the keys with a request."""
        ...

    async def take_request(self, group: str, key: str) -> bool:
        """Remove the requests for a key, for one process; return whether one of them concerns the
        record that is now its first one.
        """
        ...
