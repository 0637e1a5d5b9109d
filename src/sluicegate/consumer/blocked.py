"""The blocked messages, and how they continue.

1. A blocked message keeps its key and its place in the window until `unblock` or the end of its
   claim. After the end of its claim it is delivered again.
2. `retry` restarts its attempts. `skip` ends it without another try, with a dead letter if the
   consumer has dead letters and the message has none yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .named_keys import is_same, none_of
from .report import BlockedMessage

if TYPE_CHECKING:
    from .._core.source import TopicPartition
    from .poison import Poison
    from .schedule import Schedule

Unblocking = Literal["retry", "skip"]
UNBLOCKING: tuple[Unblocking, ...] = ("retry", "skip")


class Blocked:
    """The blocked messages of a consumer."""

    def __init__(self, schedule: Schedule, poison: Poison) -> None:
        self._schedule = schedule
        self._poison = poison

    def messages(self) -> tuple[BlockedMessage, ...]:
        """Return the blocked messages; the one blocked longest comes first."""
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
        """Continue with the blocked messages of a key; return their number.

        Raises `NoSuchKey` if there is none.
        """
        found = [
            message
            for message in self._schedule.blocked
            if is_same(message.order_key, key) and partition in {None, message.claim.partition}
        ]
        if not found:
            shown = [f"{each.key!r} of {each.partition}" for each in self.messages()]
            raise none_of("blocked", key, partition, shown)
        for message in found:
            if action == "retry":
                self._poison.try_again(message)
            else:
                self._poison.skip(message)
        return len(found)
