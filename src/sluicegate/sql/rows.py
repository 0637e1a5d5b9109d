"""Rows in the driver's form, and their results. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._core.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence


VALUE_SIZE = 24
"""Maximum size, in bytes, of the literal for a value other than text or bytes."""


@dataclass(slots=True)
class SqlRow:
    """A row in the driver's form."""

    index: int
    values: Sequence[Any]
    key: object
    """The batcher's key."""
    is_maybe: bool
    """Whether an earlier attempt has an unknown outcome."""

    @property
    def least_size(self) -> int:
        """Minimum size as literals, in bytes."""
        return sum([len(value) for value in self.values if isinstance(value, (str, bytes))])

    @property
    def most_size(self) -> int:
        """Maximum size as literals, in bytes, with every character escaped or of two bytes."""
        return sum(
            [
                2 * len(value) + 4 if isinstance(value, (str, bytes)) else VALUE_SIZE
                for value in self.values
            ]
        )


@dataclass(slots=True)
class SqlAnswer:
    """The results of rows, by the indices of their items; other rows are delivered."""

    errors: dict[int, BaseException] = field(default_factory=dict[int, BaseException])
    outcomes: dict[int, Outcome] = field(default_factory=dict[int, Outcome])


def divide(rows: Sequence[SqlRow], most: int, largest: int | None) -> list[list[SqlRow]]:
    """Divide rows into one part per statement, with at most `most` rows and about `largest` bytes
    each.
    """
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
    """Whether the rows of these values certainly have fewer bytes; faster than a check of each row."""
    texts = sum([len(value) for value in values if isinstance(value, (str, bytes))])
    return 2 * texts + VALUE_SIZE * len(values) <= size
