"""Order keys as operators write them, in `unblock` and `unpark`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core.errors import NoSuchKey
from .._core.order.keys import accepted
from .._core.text import repr_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .._core.source import TopicPartition

MOST_NAMED = 5
"""Maximum number of blocked or parked keys named in an error."""


def is_same(one: object, other: object) -> bool:
    """Return whether two order keys are the same key."""
    return accepted(one) == accepted(other)


def none_of(
    state: str, key: object, partition: TopicPartition | None, shown: Iterable[str]
) -> NoSuchKey:
    """Return the error for a key that is not blocked or not parked; `shown` are those that are."""
    known = list(shown)
    more = "" if len(known) <= MOST_NAMED else f" and {len(known) - MOST_NAMED} more"
    what = f"{', '.join(known[:MOST_NAMED])}{more}" if known else "nothing"
    where = "" if partition is None else f" of {partition}"
    return NoSuchKey(f"key {repr_of(key)}{where} is not {state}; {state}: {what}")
