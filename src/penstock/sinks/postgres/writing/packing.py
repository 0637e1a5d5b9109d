"""Rows packed here instead of by asyncpg, where that is faster and the bytes are certain.

1. asyncpg stays the judge of every value. Rows with a value that the encoder declines are sent by
   asyncpg as before, which takes the value or names the error. The first piece is encoded before
   anything is sent; a value that is declined behind it ends the `COPY`, which keeps nothing.
2. After a declined batch the next `PAUSE` ones are not tried, so that a producer of such values
   does not pay for two encoders.
3. Text is packed as UTF-8, and only for connections that speak it.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from ...._clients.postgres.copying.fields import Declined
from ...._clients.postgres.copying.rows import row_encoder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from ..rows.lazy import Row

PAUSE = 50
"""Batches that asyncpg encodes after one with a declined value."""
_UTF8 = frozenset({"UTF8", "UTF-8"})


class Packing:
    """The choice between the own encoder and asyncpg's, for the batches of one sink."""

    def __init__(self) -> None:
        self._paused = 0

    def pieces(
        self, con: PoolConnectionProxy[Any], types: tuple[str, ...], rows: Sequence[Row]
    ) -> Iterator[bytes] | None:
        """The rows as binary `COPY`, the first piece encoded; `None` to send them by asyncpg."""
        encoder = row_encoder(types)
        if encoder is None or encoder.gain <= 0 or not speaks_utf8(con):
            return None
        if self._paused:
            self._paused -= 1
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
