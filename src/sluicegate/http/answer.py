"""Response bodies, read as streams up to a limit.

1. The limit applies to bytes after decompression, and to bytes as received. Decompression is
   incremental: a compressed body of a few kilobytes that expands to gigabytes costs at most the
   limit and one piece.
2. A successful response is needed in full. If it is too long or cannot be decompressed, every item
   is unknown: `ResultMismatch`.
3. A successful response whose text is not needed is read to its end, so that the connection can be
   reused, but neither decompressed nor kept.
4. Any other response is classified by its status. Only its beginning is read, for the message, and
   an error while reading it has no effect.
"""

from __future__ import annotations

import io
import zlib
from contextlib import aclosing
from typing import TYPE_CHECKING

from .._core.classify import caused
from .._core.errors import ResultMismatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from .config import ClientResponse

BEGINNING = 8 * 1024
"""Bytes read of an unsuccessful response."""
_PIECE = 64 * 1024
"""Bytes decompressed at once."""
_READ = frozenset({"", "identity"})
_INFLATED = frozenset({"gzip", "x-gzip", "deflate"})
_ANY_HEADER = zlib.MAX_WBITS | 32
"""Lets zlib detect gzip and zlib headers."""


class Inflater:
    """Incremental decompressor of gzip and zlib data, including several members in sequence."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_ANY_HEADER)
        self._began = False

    def pieces(self, raw: bytes) -> Iterator[bytes]:
        """The content of `raw`, at most 64 KiB at a time. Raises `zlib.error`."""
        for start in range(0, len(raw), _PIECE):
            yield from self._inflated(raw[start : start + _PIECE])

    def _inflated(self, raw: bytes) -> Iterator[bytes]:
        self._began = True
        piece = b""
        while raw or len(piece) == _PIECE:
            if self._stream.eof:
                if not raw:
                    return
                self._stream = zlib.decompressobj(_ANY_HEADER)
            piece = self._stream.decompress(raw, _PIECE)
            yield piece
            raw = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail

    def check_end(self) -> None:
        """Raise `zlib.error` if the data is incomplete."""
        if self._began and not self._stream.eof:
            raise zlib.error("the compressed data is incomplete")


async def whole_body(answer: ClientResponse, most: int) -> bytes:
    """The decompressed body of a successful response.

    Raises `ResultMismatch` for more than `most` bytes, for an encoding other than gzip or deflate,
    and for broken compressed data; the client's own error if the connection breaks.
    """
    body = io.BytesIO()
    try:
        async with aclosing(_pieces(answer, most)) as pieces:
            async for piece in pieces:
                body.write(piece)
                if body.tell() > most:
                    raise _too_long(most)
    except zlib.error as error:
        message = (
            f"the answer to a successful request cannot be decompressed ({error}); the "
            "outcome of every item is unknown"
        )
        raise caused(ResultMismatch(message), error)  # noqa: B904  # the cause is set
    return body.getvalue()


async def drain(answer: ClientResponse, most: int) -> None:
    """Read a successful response to its end and discard it, without decompression. Raises as
    `whole_body` does.
    """
    if answer.is_stream_consumed:
        return
    read = 0
    async for raw in answer.aiter_raw():
        read += len(raw)
        if read > most:
            raise _too_long(most)


async def beginning(answer: ClientResponse) -> tuple[bytes, bool, Exception | None]:
    """The first bytes of a body, whether it is longer, and the error that interrupted reading."""
    body = b""
    try:
        async with aclosing(_pieces(answer, _PIECE)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > BEGINNING:
                    return body[:BEGINNING], True, None
    except Exception as error:
        return body, True, error
    return body, False, None


async def _pieces(answer: ClientResponse, most: int) -> AsyncGenerator[bytes]:
    if answer.is_stream_consumed:  # already read by a response hook of the client
        yield answer.content
        return
    inflater = _inflater(answer)
    read = 0
    async for raw in answer.aiter_raw():
        read += len(raw)
        if read > most:
            raise _too_long(most)
        if inflater is None:
            yield raw
            continue
        for piece in inflater.pieces(raw):
            yield piece
    if inflater is not None:
        inflater.check_end()


def _inflater(answer: ClientResponse) -> Inflater | None:
    encoding = str(answer.headers.get("content-encoding") or "").strip().lower()
    if encoding in _READ:
        return None
    if encoding not in _INFLATED:
        raise ResultMismatch(
            f"the answer is encoded as {encoding[:40]!r}, which was not requested; the outcome of "
            "every item is unknown"
        )
    return Inflater()


def _too_long(most: int) -> ResultMismatch:
    return ResultMismatch(
        f"the answer is longer than max_answer_bytes={most}; the outcome of every item is unknown"
    )
