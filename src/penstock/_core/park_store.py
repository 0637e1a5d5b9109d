"""The contract of a store of parked records: those that follow a poisoned record of their key.

1. The records of one key of one group are a queue: first parked, first returned.
2. A record is parked before its position is passed, so a store that forgets loses it.
3. The caller parks and removes the records of one key one call after another. A call that failed,
   or whose answer was lost, may be repeated: a record is in its key's queue once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedRecord:
    """A record that waits behind a poisoned one of its key, or that one itself.

    It can be handled as a record of a source.
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
    """Why it is parked, in words."""
    error_type: str = ""
    """The name of the class of the poisoned record's error; empty for the records behind it."""
    message: str = ""
    """The error's message."""
    attempts: int = 0
    """The failed tries."""
    parked_at: datetime
    is_poison: bool = False
    """Whether it is the poisoned record itself."""

    @property
    def coordinates(self) -> str:
        """Topic, partition and offset, as `orders/3@1044`."""
        return f"{self.topic}/{self.partition}@{self.offset}"


@runtime_checkable
class ParkStore(Protocol):
    """Keeps the parked records of consumers. A store with `async with` is open while it is used.

    `group` is the consumer's name in the store, `key` the text of an order key. Every method raises
    if the store cannot be reached; the call may have had its effect then.
    """

    @property
    def is_durable(self) -> bool:
        """Whether parked records survive this process."""
        ...

    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        """Append records to a key's queue, in order; they are stored when this returns.

        A record that is in the queue, by topic, partition and offset, stays as it is. A cancelled
        call may have stored any number of the first ones.
        """

    async def keys(self, group: str) -> frozenset[str]:
        """The keys with parked records."""
        ...

    async def first(self, group: str, key: str, most: int) -> Sequence[ParkedRecord]:
        """The first `most` records of a key's queue. They stay in it."""
        ...

    async def remove(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        """Remove records from a key's queue; one that is not in it is ignored."""

    async def counts(self, group: str) -> Mapping[str, int]:
        """The number of parked records by key, for operators."""
        ...
