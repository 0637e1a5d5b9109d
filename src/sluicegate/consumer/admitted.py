"""The result of admitting records."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .message import Message


class Broken(NamedTuple):
    """A message without a usable key or size; no worker runs it."""

    message: Message
    error: BaseException


class Admitted(NamedTuple):
    """The number of admitted records, and the broken messages among them."""

    taken: int
    broken: list[Broken]
    has_first_keyless: bool = False
    """Whether these are the first records without a key, which are handled one after another."""
