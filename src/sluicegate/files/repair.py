"""The complete part of a file, such as after a killed process or a power failure. Blocks.

Text is complete up to its last newline. A zstd file is complete up to its last whole frame; frames
and blocks state their length, so nothing is decompressed.
"""

from __future__ import annotations

import os

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 16
_HEAD = 18
_SKIPPABLE = 0x184D2A50
_RLE, _RESERVED = 1, 3


def whole_lines(fd: int) -> int:
    """Return the length of the complete lines, in bytes."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _CHUNK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def whole_frames(fd: int) -> int:
    """Return the length of the complete zstd frames, in bytes."""
    size = os.fstat(fd).st_size
    at = 0
    while at < size:
        end = _frame_end(fd, at)
        if end is None or end > size:
            return at
        at = end
    return at


def _frame_end(fd: int, at: int) -> int | None:
    head = os.pread(fd, _HEAD, at)
    if int.from_bytes(head[:4], "little") & ~0xF == _SKIPPABLE:
        return at + 8 + int.from_bytes(head[4:8], "little") if len(head) >= 8 else None
    if head[:4] != ZSTD_MAGIC or len(head) < 5:
        return None
    described = head[4]
    is_single = described >> 5 & 1
    window = 0 if is_single else 1
    dictionary = (0, 1, 2, 4)[described & 3]
    content_size = (is_single, 2, 4, 8)[described >> 6]
    end = _blocks_end(fd, at + 5 + window + dictionary + content_size)
    has_checksum = described >> 2 & 1
    return None if end is None else end + 4 * has_checksum


def _blocks_end(fd: int, at: int) -> int | None:
    is_last = False
    while not is_last:
        head = os.pread(fd, 3, at)
        if len(head) < 3:
            return None
        block = int.from_bytes(head, "little")
        is_last, kind, length = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == _RESERVED:
            return None
        at += 3 + (1 if kind == _RLE else length)
    return at
