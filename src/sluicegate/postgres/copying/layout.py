"""The bytes of rows, laid out column by column.

1. Neighbouring parts whose width is the same in all rows are one *block*: lengths, and values that
   are never NULL. All other values stand between the blocks.
2. The sizes of the values between the blocks determine where each block of each row begins. A block
   is filled for many rows as an array of records, and stored at all its places in one operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .scatter import put
from .values import FixedValues

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .values import FieldValues

    Part = tuple[str, Callable[[int, int], Any]]


class FieldBlock:
    """Neighbouring fixed-width parts, and the variable-width values after them."""

    def __init__(self, parts: Sequence[Part], after: FieldValues | None) -> None:
        self._record = np.dtype([(f"part{i}", form) for i, (form, _) in enumerate(parts)])
        self._sources = [source for _, source in parts]
        self.width = self._record.itemsize
        self.after = after

    def records(self, start: int, stop: int) -> Any:
        """Return the parts of the rows from `start` to `stop`."""
        made = np.empty(stop - start, self._record)
        for name, source in zip(self._record.names or (), self._sources, strict=True):
            made[name] = source(start, stop)
        return made


class Layout:
    """Rows of fields, preceded by the number of fields if `counted`; `ends` are their ends."""

    def __init__(self, columns: Sequence[FieldValues], rows: int, *, counted: bool) -> None:
        self._blocks = _blocks(columns, counted=counted)
        widths = np.full(rows, sum(block.width for block in self._blocks))
        for block in self._blocks:
            if block.after is not None:
                widths += block.after.sizes
        self.ends = np.cumsum(widths)

    def encoded(self, start: int, stop: int, before: bytes = b"", after: bytes = b"") -> Any:
        """Return the bytes of the rows from `start` to `stop`, between other bytes."""
        ends = self.ends[start:stop]
        first = int(self.ends[start - 1]) if start else 0
        size = int(ends[-1]) - first if stop > start else 0
        out = np.empty(len(before) + size + len(after), np.uint8)
        out[: len(before)] = np.frombuffer(before, np.uint8)
        out[len(before) + size :] = np.frombuffer(after, np.uint8)
        places = np.empty(stop - start, np.int64)
        places[:1], places[1:] = first, ends[:-1]
        places += len(before) - first
        for block in self._blocks:
            put(out, places, block.records(start, stop))
            places += block.width
            if block.after is not None:
                block.after.store(out, places, start, stop)
                places += block.after.sizes[start:stop]
        return out


def _blocks(columns: Sequence[FieldValues], *, counted: bool) -> list[FieldBlock]:
    blocks: list[FieldBlock] = []
    parts: list[Part] = [(">i2", _always(len(columns)))] if counted else []
    for column in columns:
        if isinstance(column, FixedValues) and column.valid is None:
            parts += [(">i4", _always(column.width)), (column.form, column.array)]
        else:
            blocks.append(FieldBlock([*parts, (">i4", column.lengths)], column))
            parts = []
    return [*blocks, FieldBlock(parts, None)] if parts else blocks


def _always(number: int) -> Callable[[int, int], Any]:
    return lambda _start, _stop: number
