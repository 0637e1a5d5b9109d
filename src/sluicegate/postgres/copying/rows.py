"""Rows of Python values as binary `COPY`, if the extension `_rows` is compiled.

Without it no type has a code, and asyncpg encodes every row. Its source, `_rows.c`, has the rules.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

try:
    from ._rows import codes, encode
except ImportError:
    codes = {}

IS_COMPILED = bool(codes)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PIECE = 1 << 16
"""Approximate size of a piece, in bytes."""


class Declined(Exception):  # a signal, not an error
    """These rows must be sent by asyncpg, which accepts or refuses them."""


@lru_cache(maxsize=64)
def codes_of(types: tuple[str, ...]) -> bytes | None:
    """Return the extension's code of each type; `None` if a type has none."""
    try:
        return bytes(codes[kind] for kind in types)
    except KeyError:
        return None


def pieces(types: bytes, rows: Sequence[Sequence[Any]]) -> Iterator[bytes]:
    """Yield the rows as binary `COPY`, in pieces; `types` are the codes of the columns.

    Raises `Declined` for a value that asyncpg must encode or refuse.
    """
    start, stop, is_over = 0, len(rows), False
    while not is_over:
        try:
            piece, start = encode(types, rows, start, stop, PIECE)  # pyright: ignore[reportPossiblyUnboundVariable]  # there are no codes without it
        except Exception as error:
            raise Declined from error
        is_over = start == stop
        yield piece
