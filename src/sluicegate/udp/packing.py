"""Records packed into datagrams, in order and never split. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .._core.errors import TooLargeError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Datagram(NamedTuple):
    """The payload of one datagram, and the indices of its items."""

    indices: Sequence[int]
    data: bytes


def too_large(record: bytes, limit: int) -> TooLargeError | None:
    """The error of a record that is too large for any datagram."""
    if len(record) <= limit:
        return None
    told = f"a record of {len(record):,} bytes is larger than a datagram can be (max_datagram"
    return TooLargeError(f"{told}={limit:,})")


def packed(indices: Sequence[int], records: Sequence[bytes], limit: int) -> list[Datagram]:
    """Datagrams of records separated by newlines, as full as the order of records allows."""
    found: list[Datagram] = []
    held: list[int] = []
    lines: list[bytes] = []
    size = -1  # the first record has no newline before it
    for index, record in zip(indices, records, strict=True):
        if held and size + 1 + len(record) > limit:
            found.append(Datagram(held, b"\n".join(lines)))
            held, lines, size = [], [], -1
        held.append(index)
        lines.append(record)
        size += 1 + len(record)
    if held:
        found.append(Datagram(held, b"\n".join(lines)))
    return found
