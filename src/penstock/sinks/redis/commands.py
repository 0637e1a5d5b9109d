"""Commands in the form of Redis's protocol. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Command(NamedTuple):
    """One command, and the places of the items that it stores; none for one that only trims."""

    name: bytes
    """The key that it changes."""
    places: Sequence[int]
    data: bytes


def bulk(value: bytes) -> bytes:
    """One argument."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def packed(*arguments: bytes) -> bytes:
    """A command."""
    return joined(len(arguments), map(bulk, arguments))


def joined(count: int, bulks: Iterable[bytes]) -> bytes:
    """A command of `count` arguments, which are in this form already."""
    return b"".join((b"*%d\r\n" % count, *bulks))
