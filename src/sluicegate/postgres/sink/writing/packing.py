"""Rows packed here instead of by asyncpg, if that is faster and yields the same bytes.

1. asyncpg remains the authority on every value. Rows with a value that the encoder declines are
   sent by asyncpg, which accepts the value or names the error. The first piece is encoded before
   anything is sent; a value declined after it ends the `COPY`, which then stores nothing.
   Values that asyncpg would change are declined, and checked before asyncpg sends them.
2. After a declined batch the encoder is not tried for the next `PAUSE` batches, so that a producer
   of such values does not pay for two encoders.
3. Text is packed as UTF-8, and only for connections with that encoding.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from ...copying.fields import Declined
from ...copying.rows import row_encoder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from ..rows.lazy import Row

PAUSE = 50
"""Number of batches that asyncpg encodes after one with a declined value."""
_UTF8 = frozenset({"UTF8", "UTF-8"})


class Packing:
    """The choice between our encoder and asyncpg's, for the batches of one sink."""

    def __init__(self) -> None:
        self._paused = 0

    def tries(self, con: PoolConnectionProxy[Any], types: tuple[str, ...]) -> bool:
        """Whether the next rows for columns of these types are packed, unless they are declined."""
        encoder = row_encoder(types) if types and not self._paused else None
        return encoder is not None and encoder.gain > 0 and speaks_utf8(con)

    def pieces(
        self, con: PoolConnectionProxy[Any], types: tuple[str, ...], rows: Sequence[Row]
    ) -> Iterator[bytes] | None:
        """The rows as binary `COPY`, with the first piece already encoded; `None` to let asyncpg
        send them.
        """
        encoder = row_encoder(types)
        if encoder is None or not self.tries(con, types):
            self._paused = max(0, self._paused - 1)
            return None
        pieces = encoder.pieces(rows)
        try:
            first = next(pieces)
        except Declined:
            self.decline()
            return None
        return chain((first,), pieces)

    def decline(self) -> None:
        """Leave the next batches to asyncpg."""
        self._paused = PAUSE


def speaks_utf8(con: PoolConnectionProxy[Any]) -> bool:
    """Whether text is sent to the server as UTF-8."""
    return str(con.get_settings().client_encoding).upper() in _UTF8
