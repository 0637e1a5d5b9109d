"""Rows that are ready for the driver, and what has become of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..._core.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence


VALUE_SIZE = 24
"""Bytes of a value that is no text and no bytes, at most, as a literal."""


@dataclass(slots=True)
class SqlRow:
    """A row that is ready for the driver."""

    index: int
    values: Sequence[Any]
    key: object
    """The batcher's."""
    is_maybe: bool
    """Whether an earlier try of it has an unknown outcome."""

    @property
    def least_size(self) -> int:
        """Bytes as literals, at least."""
        return sum([len(value) for value in self.values if isinstance(value, (str, bytes))])

    @property
    def most_size(self) -> int:
        """Bytes as literals, with every character escaped or of two bytes."""
        return sum(
            [
                2 * len(value) + 4 if isinstance(value, (str, bytes)) else VALUE_SIZE
                for value in self.values
            ]
        )


@dataclass(slots=True)
class SqlAnswer:
    """What has become of rows, by the indices of their items; others are delivered."""

    errors: dict[int, BaseException] = field(default_factory=dict[int, BaseException])
    outcomes: dict[int, Outcome] = field(default_factory=dict[int, Outcome])
    details: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    """The returned columns of stored rows."""


def parted(rows: Sequence[SqlRow], most: int, largest: int | None) -> list[list[SqlRow]]:
    """Rows for one statement each: so many of them, and about so many bytes."""
    if largest is None:
        return [[*rows[at : at + most]] for at in range(0, len(rows), most)]
    parts: list[list[SqlRow]] = []
    size = 0
    for row in rows:
        size += (own := row.most_size)
        if not parts or len(parts[-1]) >= most or size > largest // 2:
            parts.append([])
            size = own
        parts[-1].append(row)
    return parts


def all_values(rows: Sequence[SqlRow]) -> tuple[Any, ...]:
    """The parameters of the statement for these rows."""
    return tuple([value for row in rows for value in row.values])


def are_below(values: Sequence[Any], size: int) -> bool:
    """Whether the rows of these values surely have fewer bytes; quicker than a look at each row."""
    texts = sum([len(value) for value in values if isinstance(value, (str, bytes))])
    return 2 * texts + VALUE_SIZE * len(values) <= size
