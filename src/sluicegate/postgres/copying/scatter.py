"""Bulk copies of bytes with NumPy: fields of any width to any place in a buffer.

An array with an element of `width` bytes at *every* byte of a buffer makes NumPy's index a copy of
`width` bytes from or to any place. Bytes of other lengths are copied as in `memcpy`: as their first
and their last `width` bytes, which overlap, for each power of two.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_LARGE = 4_096
"""Size in bytes from which slices are copied one at a time."""


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
