"""Blocked messages: which they are, and how they continue.

1. A blocked message keeps its key, and its place in the window, until `unblock` or the end of its
   claim. Then it is delivered again.
2. `retry` begins its attempts again. `skip` gives it up: with a dead letter if there are dead
   letters and it has none yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .._core.errors import NoSuchKey
from .._core.order.keys import accepted
from .._core.text import repr_of
from .report import BlockedMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .._core.source import TopicPartition
    from .message import Message
    from .poison import Poison
    from .schedule import Schedule

Unblocking = Literal["retry", "skip"]
UNBLOCKING: tuple[Unblocking, ...] = ("retry", "skip")

MOST_NAMED = 5
"""Blocked or parked keys that an error names."""


class Blocked:
    """The blocked messages of a consumer."""

    def __init__(self, schedule: Schedule, poison: Poison) -> None:
        self._schedule = schedule
        self._poison = poison

    def messages(self) -> tuple[BlockedMessage, ...]:
        """The blocked messages, the longest blocked first."""
        return tuple(
            [
                BlockedMessage(
                    message.claim.partition,
                    message.offset,
                    message.order_key,
                    message.attempts.failed,
                    error,
                )
                for message, error in self._schedule.blocked.items()
            ]
        )

    def unblock(self, key: object, partition: TopicPartition | None, action: Unblocking) -> int:
        """Continue with the blocked messages of a key; return how many there are.

        Raises `NoSuchKey` if there is none.
        """
        found = [message for message in self._schedule.blocked if matches(message, key, partition)]
        if not found:
            shown = [f"{each.key!r} of {each.partition}" for each in self.messages()]
            raise none_of("blocked", key, partition, shown)
        for message in found:
            if action == "retry":
                self._poison.try_again(message)
            else:
                self._poison.skip(message)
        return len(found)


def matches(message: Message, key: object, partition: TopicPartition | None) -> bool:
    """Whether a message is of this order key, and of this partition if one is given."""
    return is_same(message.order_key, key) and partition in {None, message.claim.partition}


def is_same(one: object, other: object) -> bool:
    """Whether two order keys are one key."""
    return accepted(one) == accepted(other)


def none_of(
    state: str, key: object, partition: TopicPartition | None, shown: Iterable[str]
) -> NoSuchKey:
    """The error for a key that is not blocked, or not parked; `shown` are those that are."""
    known = list(shown)
    more = "" if len(known) <= MOST_NAMED else f" and {len(known) - MOST_NAMED} more"
    what = f"{', '.join(known[:MOST_NAMED])}{more}" if known else "nothing"
    where = "" if partition is None else f" of {partition}"
    return NoSuchKey(f"key {repr_of(key)}{where} is not {state}; {state}: {what}")
