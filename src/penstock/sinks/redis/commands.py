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
    """A command of few arguments."""
    return b"".join((b"*%d\r\n" % len(arguments), *map(bulk, arguments)))


def joined(count: int, head: bytes, arguments: Iterable[bytes]) -> bytes:
    """A command of `count` arguments in all, of which the first ones are packed in `head`."""
    return b"".join((b"*%d\r\n" % count, head, *map(bulk, arguments)))
