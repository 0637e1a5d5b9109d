"""What became of records that were to be taken in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .message import Message


class Broken(NamedTuple):
    """A message without a usable key or size, which no worker runs."""

    message: Message
    error: BaseException


class Admitted(NamedTuple):
    """How many of the given records were taken in, and which of them are broken."""

    taken: int
    broken: list[Broken]
    has_first_keyless: bool = False
    """Whether these are the first records without a key, which are handled one by one."""
