"""The bytes of rows, laid out column by column with NumPy.

1. The values of one column (`FieldValues`) are bytes of fields that can be stored at any place.
2. Neighbouring parts whose width is the same in all rows are one *block*: lengths, and values that
   are never NULL. All other values stand between the blocks.
3. The sizes of the values between the blocks determine where each block of each row begins. A block
   is filled for many rows as an array of records, and stored at all its places in one operation.
4. An array with an element of `width` bytes at *every* byte of a buffer makes NumPy's index a copy of
   `width` bytes from or to any place. Bytes of other lengths are copied as in `memcpy`: as their
   first and their last `width` bytes, which overlap, for each power of two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LARGE = 4_096
"""Size in bytes from which slices are copied one at a time."""


class NoEncoder(Exception):  # a signal, not an error
    """This column must be sent as tuples."""


class FieldValues(ABC):
    """Values of a column.

    `sizes` are their sizes in bytes, 0 for NULL; `valid` marks values that are not NULL, and is
    `None` if there is no NULL. Fixed-width values without NULL need no sizes.
    """

    def __init__(self, sizes: Any, valid: Any) -> None:
        self.sizes = sizes
        self.valid = valid

    def lengths(self, start: int, stop: int) -> Any:
        """Return the lengths that precede the values; -1 for NULL."""
        sizes = self.sizes[start:stop]
        return sizes if self.valid is None else np.where(self.valid[start:stop], sizes, -1)

    @abstractmethod
    def store(self, out: Any, places: Any, start: int, stop: int) -> None:
        """Store the values of the rows from `start` to `stop` at `places`."""


class FixedValues(FieldValues):
    """Values of one width, in the NumPy type `form`."""

    def __init__(self, form: str, valid: Any) -> None:
        self.form = form
        self.width = np.dtype(form).itemsize
        super().__init__(None if valid is None else valid * np.int64(self.width), valid)

    @abstractmethod
    def array(self, start: int, stop: int) -> Any:
        """Return the values, which NumPy converts to `form`; any value for NULL."""

    def store(self, out: Any, places: Any, start: int, stop: int) -> None:
        """Store the values that are not NULL."""
        numbers = self.array(start, stop)
        if self.valid is not None:
            rows = np.flatnonzero(self.valid[start:stop])
            numbers, places = numbers[rows], places[rows]
        put(out, places, numbers.astype(self.form))


class ArrayValues(FixedValues):
    """Numbers, with `zero` as PostgreSQL's 0; or bytes."""

    def __init__(self, form: str, numbers: Any, valid: Any, zero: int = 0) -> None:
        super().__init__(form, valid)
        self._numbers = numbers
        self._zero = zero

    def array(self, start: int, stop: int) -> Any:
        """Return the numbers since PostgreSQL's epoch."""
        found = self._numbers[start:stop]
        return found - self._zero if self._zero else found


class SlicedValues(FieldValues):
    """Values of any length: the bytes of `data` between two offsets, after one byte `mark`."""

    def __init__(self, data: Any, offsets: Any, valid: Any, mark: bytes = b"") -> None:
        sizes = np.subtract(offsets[1:], offsets[:-1], dtype=np.int64) + len(mark)
        super().__init__(sizes if valid is None else sizes * valid, valid)
        self._data = data
        self._starts = offsets[:-1]
        self._mark = mark

    def store(self, out: Any, places: Any, start: int, stop: int) -> None:
        """Copy the values that are not NULL."""
        sizes = self.sizes[start:stop]
        if self._mark:
            out[places[np.flatnonzero(sizes)]] = ord(self._mark)
            sizes, places = np.maximum(sizes - 1, 0), places + 1
        move(out, places, self._data, self._starts[start:stop], sizes)


class FieldBlock:
    """Neighbouring fixed-width parts, and the variable-width values after them."""

    def __init__(
        self, parts: Sequence[tuple[str, Callable[[int, int], Any]]], after: FieldValues | None
    ) -> None:
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
    """Rows of fields, preceded by the number of fields; `ends` are their ends."""

    def __init__(self, columns: Sequence[FieldValues], rows: int) -> None:
        self._blocks = _blocks(columns)
        widths = np.full(rows, sum(block.width for block in self._blocks))
        for block in self._blocks:
            if block.after is not None:
                widths += block.after.sizes
        self.ends = np.cumsum(widths)

    def encode(self, start: int, stop: int, before: bytes = b"", after: bytes = b"") -> Any:
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


def _blocks(columns: Sequence[FieldValues]) -> list[FieldBlock]:
    blocks: list[FieldBlock] = []
    parts: list[tuple[str, Callable[[int, int], Any]]] = [(">i2", _always(len(columns)))]
    for column in columns:
        if isinstance(column, FixedValues) and column.valid is None:
            parts += [(">i4", _always(column.width)), (column.form, column.array)]
        else:
            blocks.append(FieldBlock([*parts, (">i4", column.lengths)], column))
            parts = []
    return [*blocks, FieldBlock(parts, None)] if parts else blocks


def _always(number: int) -> Callable[[int, int], Any]:
    return lambda _start, _stop: number


def elements(buffer: Any, width: int) -> Any:
    """Return a view of `buffer` with an element of `width` bytes at every byte."""
    return np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,))


def put(out: Any, places: Any, records: Any) -> None:
    """Store one record at each of the places."""
    if len(places):
        width = records.dtype.itemsize
        elements(out, width)[places] = records.view(f"V{width}")


def move(out: Any, places: Any, data: Any, starts: Any, sizes: Any) -> None:
    """Copy `sizes[i]` bytes of `data` from `starts[i]` to `places[i]`."""
    if not sizes.all():
        rows = np.flatnonzero(sizes)
        places, starts, sizes = places[rows], starts[rows], sizes[rows]
    if not len(sizes):
        return
    least, most = int(sizes.min()), int(sizes.max())
    width = 1 << (least.bit_length() - 1)
    while width <= most and width < _LARGE:
        if least < width or most >= 2 * width:
            rows = np.flatnonzero((sizes >= width) & (sizes < 2 * width))
            chosen = places[rows], starts[rows], sizes[rows] - width
        else:
            chosen = places, starts, sizes - width
        _move_ends(elements(out, width), elements(data, width), *chosen)
        width *= 2
    if most >= _LARGE:
        rows = np.flatnonzero(sizes >= _LARGE)
        for place, start, size in zip(
            places[rows].tolist(), starts[rows].tolist(), sizes[rows].tolist(), strict=True
        ):
            out[place : place + size] = data[start : start + size]


def _move_ends(target: Any, source: Any, places: Any, starts: Any, rest: Any) -> None:
    """Copy values that are `rest` bytes longer than an element, by their first and last element."""
    target[places] = source[starts]
    if rest.any():
        target[places + rest] = source[starts + rest]
