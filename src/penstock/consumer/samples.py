"""How long messages and positions have been as they are, by samples. Pure.

Nothing is stamped when a message begins: a sampler looks once per period. An age is therefore *at
least* that long, and short by less than a period.
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
    """A message in a place, and when it was seen there first."""

    reason: WaitReason
    attempt: int
    since: float


class Samples:
    """When each busy message and each position was first seen as it was seen last."""

    def __init__(self) -> None:
        self._messages: dict[Message, Seen] = {}
        self._heads: dict[Claim, tuple[int | None, float]] = {}
        self.taken_at = 0.0

    def take(self, now: float, busy: Iterable[Standing], claims: Iterable[Claim]) -> None:
        """Note where messages and positions are at `now`; forget the others."""
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
        self._heads, self.taken_at = heads, now  # at once: other threads read them

    def _seen(self, message: Message, reason: WaitReason, now: float) -> Seen:
        seen = self._messages.get(message)
        attempt = message.attempt
        if seen is not None and seen.reason is reason and seen.attempt == attempt:
            return seen
        return Seen(reason, attempt, now)

    def since(self) -> dict[Message, float]:
        """When each busy message was first seen in its place."""
        return {message: seen.since for message, seen in self._messages.items()}

    def age(self, message: Message, now: float) -> float | None:
        """Seconds that a busy message has been in its place, at least."""
        seen = self._messages.get(message)
        return None if seen is None else now - seen.since

    def stood(self, claim: Claim, now: float) -> float | None:
        """Seconds that the first unfinished record of a claim has been the same, at least."""
        head, since = self._heads.get(claim, (None, now))
        return None if head is None else now - since
