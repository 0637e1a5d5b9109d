"""Ages of the states of messages and positions, by sampling. Pure.

No time is recorded when a message begins: a sampler looks once per period. An age is therefore a
minimum, less than one period too short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .claim import Claim
    from .message import Message
    from .standing import Standing
    from .wait_reason import WaitReason


class Seen(NamedTuple):
    """The state of a message, and the time at which it was first seen in it."""

    reason: WaitReason
    attempt: int
    since: float


class Samples:
    """For each busy message and each position, the time since which it is unchanged."""

    def __init__(self) -> None:
        self._messages: dict[Message, Seen] = {}
        self._heads: dict[Claim, tuple[int | None, float]] = {}
        self.taken_at = 0.0

    def take(self, now: float, busy: Iterable[Standing], claims: Iterable[Claim]) -> None:
        """Record the states of messages and positions at `now`; forget all others."""
        self._messages = {
            standing.message: self._seen(standing.message, standing.reason, now)
            for standing in busy
        }
        heads: dict[Claim, tuple[int | None, float]] = {}
        for claim in claims:
            head, since = claim.tracker.head(), now
            if claim in self._heads and self._heads[claim][0] == head:
                since = self._heads[claim][1]
            heads[claim] = head, since
        self._heads, self.taken_at = heads, now  # assigned at once, since other threads read them

    def _seen(self, message: Message, reason: WaitReason, now: float) -> Seen:
        seen = self._messages.get(message)
        attempt = message.attempt
        if seen is not None and seen.reason is reason and seen.attempt == attempt:
            return seen
        return Seen(reason, attempt, now)

    def since(self) -> dict[Message, float]:
        """Return the time at which each busy message was first seen in its state."""
        return {message: seen.since for message, seen in self._messages.items()}

    def age(self, message: Message, now: float) -> float | None:
        """Return the minimum time in seconds for which a busy message has been in its state."""
        seen = self._messages.get(message)
        return None if seen is None else now - seen.since

    def stood(self, claim: Claim, now: float) -> float | None:
        """Return the minimum time in seconds for which the first unfinished record has not
        changed.
        """
        head, since = self._heads.get(claim, (None, now))
        return None if head is None else now - since
