"""Reader of the offset maps that Confluent's parallel consumer stores, to take over its groups.
Pure.

1. The metadata is base64 of a magic byte and a payload. Offsets are relative to the position.
2. `n` and `e`: lengths of runs, big endian, of 16 and 32 bits. Runs alternate between unfinished
   and finished, starting with unfinished; only the first may have length 0.
3. `l` and `o`: the number of offsets, of 16 and 32 bits, then one bit per offset, lowest bit first,
   set if the offset is finished. More bytes than needed may follow.
4. `J`, `p`, `a`, `s`: the payloads of `n`, `e`, `l`, `o`, compressed with zstd.
5. 1 and 2 are not maps: Kafka Streams writes them.

The format counts nonexistent offsets as finished, so a range may span holes. It has no checksum:
text is refused only for its structure, and truncated runs may be read as a shorter map.
"""

from __future__ import annotations

import struct
from base64 import b64decode

from .._core.errors import MissingExtra
from .._core.extras import need
from ..consumer.progress.offset_map import ForeignMap

_MOST_BYTES = 1 << 18
"""Maximum payload size in bytes: the bits of two million offsets."""
_MOST_MEMORY = 1 << 23
"""Maximum memory of the decompression in bytes; the format's own compressor needs a quarter
of it.
"""
_SLICE = 64
"""Compressed bytes decompressed at a time; they expand to at most two megabytes."""

_COMPRESSED = {b"J": b"n", b"p": b"e", b"a": b"l", b"s": b"o"}
_RUNS = {b"n": "h", b"e": "i"}
_BITS = {b"l": ">h", b"o": ">i"}
_STREAMS = {b"\1", b"\2"}


def confluent_ranges(position: int, text: str) -> list[tuple[int, int]]:
    """Return the finished ranges from `position` on, half open and ascending. Raises
    `ForeignMap`.
    """
    try:
        content = b64decode(text, validate=True)
    except ValueError as error:
        message = f"not base64: {error}"
        raise ForeignMap(message) from error
    magic, payload = content[:1], content[1:]
    if magic in _COMPRESSED:
        magic, payload = _COMPRESSED[magic], _decompressed(payload)
    if magic in _RUNS:
        return _of_runs(position, payload, _RUNS[magic])
    if magic in _BITS:
        return _of_bits(position, payload, _BITS[magic])
    message = "written by Kafka Streams" if magic in _STREAMS else f"unknown magic byte {magic!r}"
    raise ForeignMap(message)


def _of_runs(position: int, payload: bytes, code: str) -> list[tuple[int, int]]:
    count, rest = divmod(len(payload), struct.calcsize(f">{code}"))
    runs = struct.unpack(f">{count}{code}", payload[: len(payload) - rest])
    if rest or not runs or runs[0] < 0 or min(runs[1:], default=1) < 1:
        message = f"{len(payload)} bytes are not lengths of runs"
        raise ForeignMap(message)
    ranges: list[tuple[int, int]] = []
    at = position
    for number, run in enumerate(runs):
        if number % 2:
            ranges.append((at, at + run))
        at += run
    return ranges


def _of_bits(position: int, payload: bytes, header: str) -> list[tuple[int, int]]:
    size = struct.calcsize(header)
    length = struct.unpack(header, payload[:size])[0] if len(payload) >= size else -1
    bits = payload[size:]
    if not 0 <= length <= 8 * len(bits):
        message = f"{len(payload)} bytes are not the bits of {length} offsets"
        raise ForeignMap(message)
    text = f"{int.from_bytes(bits, 'little'):0{8 * len(bits)}b}"[::-1][:length]
    ranges: list[tuple[int, int]] = []
    start = text.find("1")
    while start >= 0:
        end = text.find("0", start)
        if end < 0:
            end = length
        ranges.append((position + start, position + end))
        start = text.find("1", end)
    return ranges


def _decompressed(payload: bytes) -> bytes:
    try:
        need("zstandard", "files", "a map compressed with zstd")
    except MissingExtra as error:
        raise ForeignMap(str(error)) from error
    import zstandard

    frame = zstandard.ZstdDecompressor(max_window_size=_MOST_MEMORY).decompressobj()
    found = b""
    try:
        for at in range(0, len(payload), _SLICE):
            found += frame.decompress(payload[at : at + _SLICE])
            if len(found) > _MOST_BYTES:
                break
    except zstandard.ZstdError as error:
        message = f"not zstd: {error}"
        raise ForeignMap(message) from error
    if not frame.eof or frame.unused_data or len(found) > _MOST_BYTES:
        message = f"not one zstd frame of at most {_MOST_BYTES:,} bytes"
        raise ForeignMap(message)
    return found
