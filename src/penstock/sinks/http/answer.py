"""The body of an answer, read as a stream and never beyond a limit.

1. The limit counts bytes after decompression, and bytes as they arrive. Decompression is
   incremental: a compressed answer of a few kilobytes that grows to gigabytes costs the limit and
   one piece at most.
2. A success needs the whole answer. One that is too long, or that cannot be decompressed, says
   nothing about any item: `ResultMismatch`.
3. A success whose text is not needed is read to its end, so that the connection can be used again,
   but neither decompressed nor kept.
4. Any other answer is judged by its status. Only its beginning is read, for the message, and an
   error while reading it changes nothing.
"""

from __future__ import annotations

import io
import zlib
from contextlib import aclosing
from typing import TYPE_CHECKING

from ..._core.causes import caused
from ..._core.errors import ResultMismatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from .config import ClientResponse

BEGINNING = 8 * 1024
"""Bytes that are read of an answer that is no success."""
_PIECE = 64 * 1024
"""Bytes that are decompressed at once."""
_READ = frozenset({"", "identity"})
_INFLATED = frozenset({"gzip", "x-gzip", "deflate"})
_ANY_HEADER = zlib.MAX_WBITS | 32
"""zlib finds out itself whether it reads gzip or zlib data."""


class Inflater:
    """Decompresses gzip and zlib data piece by piece, also when several compressed members follow
    each other.
    """

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
        """Raise `zlib.error` unless the data was complete."""
        if self._began and not self._stream.eof:
            raise zlib.error("the compressed data is incomplete")


async def whole_body(answer: ClientResponse, most: int) -> bytes:
    """The decompressed body of a success.

    Raises `ResultMismatch` for more than `most` bytes, for an encoding that is not gzip or deflate,
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
        raise caused(ResultMismatch(message), error)  # noqa: B904  # it has its cause
    return body.getvalue()


async def drain(answer: ClientResponse, most: int) -> None:
    """Read the body of a success to its end and forget it. Raises as `whole_body` does, but does
    not decompress.
    """
    if answer.is_stream_consumed:
        return
    read = 0
    async for raw in answer.aiter_raw():
        read += len(raw)
        if read > most:
            raise _too_long(most)


async def beginning(answer: ClientResponse) -> tuple[bytes, bool, Exception | None]:
    """The first bytes of a body, whether there is more of it, and the error that ended reading it
    early.
    """
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
    if answer.is_stream_consumed:  # a response hook of the client's has read it
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
            f"the answer is encoded as {encoding[:40]!r}, which was not asked for; the outcome "
            "of every item is unknown"
        )
    return Inflater()


def _too_long(most: int) -> ResultMismatch:
    return ResultMismatch(
        f"the answer is longer than max_answer_bytes={most}; the outcome of every item is unknown"
    )
