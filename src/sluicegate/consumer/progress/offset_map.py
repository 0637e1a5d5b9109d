"""The map of finished offsets beyond a position, stored as text in the metadata of its commit.
Pure.

1. The map lists ranges as pairs (gap, run): unfinished or missing offsets, then finished ones, each
   a LEB128 number. Its size depends on the number of ranges, not on the number of records.
2. The text is one character for the form, followed by base85 of a checksum and of the pairs,
   deflated if that is shorter. Metadata is ASCII and at most 4,096 bytes: a broker refuses more.
3. The checksum covers the form and the position. A map is only valid with its own position, and
   tools that move a group's offset may keep its metadata. Damaged text and such maps are refused.
4. A map over the limit is cut, never refused: the ranges nearest to the position are kept. Records
   of the removed ranges are handled again after a crash, so a cut causes repetition, but no loss.
5. Work is bounded in both directions: a map has at most `MOST_RANGES` ranges, a cut reads and
   compresses at most twice the kept size, a dozen times, and inflating stops at a limit.

Huffman coding alone suits runs of random lengths: 16,000 unfinished records of 32,000 take as much
space as a bitmap, so there is no bitmap. Repeated patterns need the full algorithm, which is slower
and tried only if Huffman coding alone does not fit.
"""

from __future__ import annotations

import zlib
from base64 import b85decode, b85encode
from bisect import bisect_right
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


ReadsMap: TypeAlias = "Callable[[int, str], list[tuple[int, int]]]"
"""Reads metadata of another form: a position and its text."""

__all__ = ["LIMIT", "MOST_RANGES", "EncodedMap", "ForeignMap", "decode", "encode", "join"]

LIMIT = 4_000
"""Maximum number of characters of a map: a Kafka broker's limit (4,096 bytes) minus a margin."""
MOST_RANGES = 16_384
"""Maximum number of ranges of a map. Further ranges are cut, and a text with more is refused."""

# The first character. It is not in the base64 alphabet, with which other formats begin.
_PLAIN = "!"
_DEFLATED = "#"

_CHECKSUM = 4  # bytes
_SEVEN_BITS = 0x7F
_LONGEST = 9  # bytes of a number below 2**63
_MOST_BYTES = 2 * _LONGEST * MOST_RANGES
_HALVINGS = 6  # of the step in the search for a cut


class EncodedMap(NamedTuple):
    """A map as text."""

    text: str
    """ASCII text within the limit; empty if there are no ranges."""
    cut: bool
    """Whether ranges were cut."""


def encode(position: int, ranges: Iterable[tuple[int, int]], limit: int = LIMIT) -> EncodedMap:
    """Encode finished ranges beyond `position`, in at most `limit` characters.

    `ranges` must be half open, ascending and not adjacent, and must not begin before the position;
    otherwise raises `ValueError`. They are read only as far as they may fit.
    """
    pairs = _Pairs(position, ranges)
    text, kept = _longest(pairs, _seed(position), _room(limit))
    return EncodedMap(text, cut=kept < len(pairs))


def join(*parts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of several parts in the order of their starts, and merge adjacent ones.

    A claim begins with the map of the previous claim. Until all of that map has been delivered
    again, the rest of it must be part of each commit. Otherwise the next crash would repeat its
    records.
    """
    start = end = -1
    for low, high in chain.from_iterable(parts):
        if low > end:
            if end >= 0:
                yield start, end
            start = low
        end = max(end, high)
    if end >= 0:
        yield start, end


def decode(
    position: int, text: str | None, foreign: ReadsMap | None = None
) -> list[tuple[int, int]]:
    """Return the finished ranges of metadata stored with `position`, half open and ascending.

    Missing metadata is an empty map. Text of another form is read by `foreign`, if given. Raises
    `ForeignMap` for anything else that is not a complete map of this position.
    """
    if not text:
        return []
    if text[0] not in _PLAIN + _DEFLATED:
        if foreign is None:
            message = f"unknown form {text[0]!r}"
            raise ForeignMap(message)
        return foreign(position, text)
    try:
        content = b85decode(text[1:])
    except ValueError as error:
        message = f"not base85: {error}"
        raise ForeignMap(message) from error
    form, checksum, body = text[0], content[:_CHECKSUM], content[_CHECKSUM:]
    if checksum != _checksum(form, body, _seed(position)):
        message = f"damaged, or not of position {position}"
        raise ForeignMap(message)
    return _ranges(position, body if form == _PLAIN else _inflate(body))


class _Pairs:
    """The pairs of ranges, read on demand."""

    def __init__(self, position: int, ranges: Iterable[tuple[int, int]]) -> None:
        self._pairs = bytearray()
        self._ends: list[int] = []  # of each pair
        self._at = position
        self._ranges = iter(ranges)

    def __len__(self) -> int:
        return len(self._ends)

    def first(self, count: int) -> bytes:
        """Return the first `count` pairs."""
        return bytes(self._pairs[: self._ends[count - 1]])

    def within(self, size: int) -> int:
        """Return the number of pairs that take at most `size` bytes."""
        return bisect_right(self._ends, size)

    def read(self, size: int) -> None:
        """Read until there are more than `size` bytes or `MOST_RANGES` pairs, or until the ranges
        end.
        """
        pairs, ends = self._pairs, self._ends
        if len(pairs) > size or len(ends) > MOST_RANGES:
            return
        for start, end in self._ranges:
            gap, run = start - self._at, end - start
            if run < 1 or gap < (1 if ends else 0):
                message = f"range {start} to {end} behind {self._at}"
                raise ValueError(message)
            if gap > _SEVEN_BITS or run > _SEVEN_BITS:
                _append(pairs, gap)
                _append(pairs, run)
            else:  # the same, twice as fast
                pairs.append(gap)
                pairs.append(run)
            ends.append(len(pairs))
            self._at = end
            if len(pairs) > size or len(ends) > MOST_RANGES:
                return


def _append(pairs: bytearray, number: int) -> None:
    """Append in LEB128: seven bits per byte, lowest first, the eighth bit set on all but the last
    byte.
    """
    while number > _SEVEN_BITS:
        pairs.append(number & _SEVEN_BITS | 0x80)
        number >>= 7
    pairs.append(number)


def _longest(pairs: _Pairs, seed: int, room: int) -> tuple[str, int]:
    """Return the text of approximately the longest prefix of the pairs that fits, and its number of
    pairs.

    Starts with the size that fits without compression, doubles it until it no longer fits, then
    halves the step. For a map of any size, it reads and compresses at most twice the size that can
    be kept.
    """
    kept, text = 0, ""
    size = max(room, 0)
    while True:
        pairs.read(size)
        count = min(pairs.within(size), MOST_RANGES)
        more = _text(pairs.first(count), seed, room) if count else None
        if more is None:
            return _halve(pairs, seed, room, (kept, text), count)
        kept, text = count, more
        if kept in (MOST_RANGES, len(pairs)):
            return text, kept
        size *= 2


def _halve(
    pairs: _Pairs, seed: int, room: int, fits: tuple[int, str], fails: int
) -> tuple[str, int]:
    """Return the same, for a limit between a number of pairs that fits and a number that
    does not.
    """
    kept, text = fits
    for _ in range(_HALVINGS):
        middle = (kept + fails) // 2
        if middle == kept:
            break
        more = _text(pairs.first(middle), seed, room)
        if more is None:
            fails = middle
        else:
            kept, text = middle, more
    return text, kept


def _text(pairs: bytes, seed: int, room: int) -> str | None:
    """Return the pairs as text; `None` if no form of them takes at most `room` bytes."""
    deflated = _deflate(pairs, zlib.Z_HUFFMAN_ONLY)
    if len(deflated) > room and len(pairs) > room:
        deflated = _deflate(pairs, zlib.Z_DEFAULT_STRATEGY)
    form, body = min((_PLAIN, pairs), (_DEFLATED, deflated), key=lambda each: len(each[1]))
    if len(body) > room:
        return None
    return form + b85encode(_checksum(form, body, seed) + body).decode("ascii")


def _room(limit: int) -> int:
    """Return the number of bytes that fit into `limit` characters, besides the form and the
    checksum. Base85 turns four bytes into five characters, and a last, shorter group into one
    character more than its bytes.
    """
    groups, rest = divmod(limit - 1, 5)
    return 4 * groups + max(rest - 1, 0) - _CHECKSUM


def _deflate(pairs: bytes, strategy: int) -> bytes:
    compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS, strategy=strategy)
    return compressor.compress(pairs) + compressor.flush()


def _inflate(body: bytes) -> bytes:
    decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        pairs = decompressor.decompress(body, _MOST_BYTES)
    except zlib.error as error:
        message = f"not deflated: {error}"
        raise ForeignMap(message) from error
    if not decompressor.eof or decompressor.unused_data:
        message = f"not one deflated map of at most {_MOST_BYTES:,} bytes"
        raise ForeignMap(message)
    return pairs


def _seed(position: int) -> int:
    return zlib.crc32(position.to_bytes(8, "big", signed=True))


def _checksum(form: str, body: bytes, seed: int) -> bytes:
    return zlib.crc32(form.encode("ascii") + body, seed).to_bytes(_CHECKSUM, "big")


def _ranges(position: int, pairs: bytes) -> list[tuple[int, int]]:
    """Return the ranges of the pairs, with strict checks."""
    numbers = _numbers(pairs)
    if not numbers or len(numbers) % 2 or len(numbers) > 2 * MOST_RANGES or not all(numbers[1:]):
        message = f"{len(numbers)} numbers, {numbers.count(0)} of them 0, are not gaps and runs"
        raise ForeignMap(message)
    ranges: list[tuple[int, int]] = []
    at = position
    for gap, run in zip(numbers[::2], numbers[1::2], strict=True):
        start = at + gap
        at = start + run
        ranges.append((start, at))
    if at >= 1 << 63:
        message = f"ends at {at}, beyond every offset"
        raise ForeignMap(message)
    return ranges


def _numbers(pairs: bytes) -> list[int]:
    """Read LEB128."""
    numbers: list[int] = []
    number = shift = 0
    for byte in pairs:
        number |= (byte & 0x7F) << shift
        if byte > 0x7F:  # another byte follows
            shift += 7
            if shift >= 7 * _LONGEST:
                message = "a number of more than 63 bits"
                raise ForeignMap(message)
        else:
            numbers.append(number)
            number = shift = 0
    if shift:
        message = "ends inside a number"
        raise ForeignMap(message)
    return numbers


class ForeignMap(ValueError):  # it names the metadata
    """The metadata of a commit cannot be read: it is from another program, damaged, or of another
    position.

    Ignoring it is safe: the records from the position on are handled again.
    """
