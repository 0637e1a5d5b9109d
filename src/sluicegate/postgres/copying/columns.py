"""Arrow columns as binary `COPY`, without a Python object per value.

Rows are encoded in pieces that fit in the processor's cache. The server works on one piece while
the next is encoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .arrow import field_values
from .layout import Layout
from .values import NoEncoder
from .wire import HEADER, TRAILER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["MESSAGE", "PIECE", "NoEncoder", "binary_copy"]

PIECE = 1 << 18
"""Bytes of rows that are encoded together; a larger row is encoded alone."""
MESSAGE = 1 << 20
"""Maximum bytes per message: large values could exceed the server's limit of 1 GiB."""


def binary_copy(
    columns: Sequence[tuple[Any, str]], *, piece_bytes: int = PIECE
) -> Iterator[memoryview]:
    """Encode Arrow arrays, each with the type of its column, as pieces of binary `COPY`.

    Each piece has its own memory. Raises `NoEncoder` immediately if a column must be sent as
    tuples.
    """
    fields = [field_values(values, kind) for values, kind in columns]
    return _pieces(Layout(fields, len(columns[0][0]), counted=True), piece_bytes)


def _pieces(layout: Layout, piece_bytes: int) -> Iterator[memoryview]:
    ends = layout.ends
    start, rows, sent = 0, len(ends), 0
    if not rows:
        yield memoryview(HEADER + TRAILER)
    while start < rows:
        stop = max(start + 1, int(np.searchsorted(ends, sent + piece_bytes, "right")))
        before, after = HEADER if not start else b"", TRAILER if stop == rows else b""
        piece = layout.encoded(start, stop, before, after).data
        for place in range(0, len(piece), MESSAGE):
            yield piece[place : place + MESSAGE]
        start, sent = stop, int(ends[stop - 1])
