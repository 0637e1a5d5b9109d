"""The values of one column as the bytes of their fields, which can be stored at any place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from .scatter import elements, move, put


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

    def of_width(self, width: int, start: int, stop: int) -> Any:
        """Return the values that are not NULL if all have this width, otherwise `None`."""
        sizes, starts = self.sizes[start:stop], self._starts[start:stop]
        if self.valid is not None:
            rows = np.flatnonzero(self.valid[start:stop])
            sizes, starts = sizes[rows], starts[rows]
        if not len(sizes) or (sizes != width).any():
            return None
        return elements(self._data, width)[starts]
