"""Commands in the form of the Redis protocol. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Command(NamedTuple):
    """A command, and the places of the items that it stores; none for a command that only trims."""

    name: bytes
    """The key that the command changes."""
    places: Sequence[int]
    data: bytes


def bulk(value: bytes) -> bytes:
    """Encode one argument."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def packed(*arguments: bytes) -> bytes:
    """Encode a command."""
    return joined(len(arguments), map(bulk, arguments))


def joined(count: int, bulks: Iterable[bytes]) -> bytes:
    """Join `count` encoded arguments into a command."""
    return b"".join((b"*%d\r\n" % count, *bulks))
