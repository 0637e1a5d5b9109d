"""The start of partitions without a stored position, or whose position is no longer retained."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from ..._core import checks

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..._core.source import TopicPartition

Start = Literal["earliest", "latest", "committed"]
_RULE = 'must be "earliest", "latest", "committed" or a datetime with a time zone'


class Offsets(Protocol):
    """A client that reads the offsets of partitions. Raises its own errors."""

    async def beginnings(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first retained offsets."""
        ...

    async def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets after the last readable records."""
        ...

    async def offsets_at(
        self, partitions: Collection[TopicPartition], milliseconds: int
    ) -> dict[TopicPartition, int]:
        """Return the first offsets at or after this time, if there are any."""
        ...


@dataclass(frozen=True, slots=True)
class StartPoint:
    """The beginning, the end, a time, or only stored positions."""

    kind: Start | Literal["time"]
    time: datetime | None = None

    @classmethod
    def of(cls, start: object) -> StartPoint:
        """Check the argument. Raises `ConfigError`."""
        if isinstance(start, datetime):
            if start.utcoffset() is None:
                raise checks.bad("start", start, _RULE)
            return cls("time", start)
        for kind in get_args(Start):
            if start == kind:
                return cls(kind)
        raise checks.bad("start", start, _RULE)

    @property
    def moves(self) -> bool:
        """Whether its offset changes over time even if nothing is read."""
        return self.kind == "latest"

    async def offsets(
        self, client: Offsets, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the first offsets to deliver, for partitions that have one.

        Raises errors of the client.
        """
        if not partitions or self.kind == "committed":
            return {}
        if self.kind == "earliest":
            return await client.beginnings(partitions)
        ends = await client.ends(partitions)
        if self.time is None:
            return ends
        return ends | await client.offsets_at(partitions, round(self.time.timestamp() * 1000))

    def __str__(self) -> str:
        return repr(self.kind) if self.time is None else self.time.isoformat()
