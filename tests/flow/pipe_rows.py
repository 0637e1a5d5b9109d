"""Rows, claims and writes in the model of a pipe.

White box: the map beside a committed position is decoded.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from sluicegate.consumer.progress import offset_map

if TYPE_CHECKING:
    from collections.abc import Hashable

    from sluicegate.consumer import Position, Record, SourceClaim


class Row(NamedTuple):
    """A row of a record."""

    partition: int
    offset: int
    part: int
    key: Hashable
    claim: int = 0
    """The number of the claim in which it was made; 0 if unknown."""


RowId = tuple[int, int, int]
"""Partition, offset and part."""


def id_of(row: Row | Record) -> RowId:
    """The identity of a row; the record itself counts as its first row."""
    return (row.partition, row.offset, row.part if isinstance(row, Row) else 0)


class Told(NamedTuple):
    """The facts about a record that the model knows before it is read."""

    rows: tuple[Row, ...]
    """The rows that can be written."""
    is_whole: bool
    """Whether these are all rows; otherwise the record can only be given up."""


class WatchedClaim:
    """A member's claim as its source assigned it."""

    def __init__(self, claim: SourceClaim, start: Position, ends: int) -> None:
        self.claim = claim
        self.number: int = cast("Any", claim).number
        self.partition = claim.partition.partition
        self.start = settled_of(start, ends)
        self.was_returned = False
        """Whether a revoke has returned its position."""
        self.has_ended = False
        """Whether the member has been informed of the revoke or loss."""
        self.acked: dict[RowId, float] = {}
        """The times at which rows were acknowledged."""
        self.last_acked: dict[Hashable, RowId] = {}
        self.doubtful: set[RowId] = set()
        self.passed: set[RowId] = set()
        """Rows of cut writes that nevertheless succeeded: they may count as acknowledged."""
        self.next_of: dict[Hashable, int] = defaultdict(int)
        """The number of safe rows of each key, among those in the key's chain."""


class Call:
    """One write at the destination."""

    def __init__(self, member: str, rows: list[Row], claims: list[WatchedClaim | None]) -> None:
        self.member = member
        self.rows = rows
        self.claims = claims
        self.applied: set[int] = set()
        self.cut_at: float | None = None


def settled_of(position: Position, end: int) -> frozenset[int]:
    """The settled offsets in a stored position."""
    ranges = offset_map.decode(position.offset, position.metadata)
    beyond = [offset for start, stop in ranges for offset in range(start, stop)]
    return frozenset([*range(min(position.offset, end)), *beyond])


def row_of(record: Record) -> Row:
    """The row of an untransformed record."""
    return Row(record.partition, record.offset, 0, record.key)
