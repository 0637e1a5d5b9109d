"""Items whose records are in doubt, with the results that are known by now.

A batch of records without a response is resent unchanged by the next write to its partition. When
one of its items is retried, the item takes the result of that batch and is not sent a second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..client.produced import Stored
    from ..client.producer import SealedRecords

MOST = 1_000
"""Maximum number of remembered batches. Abandoned items never take their results."""


class SentItem(NamedTuple):
    """A record that was sent for an item."""

    batch: SealedRecords
    number: int
    """The record's place in the batch."""


class SentItems:
    """The records in doubt, by the token of their item."""

    def __init__(self) -> None:
        self._of: dict[str, SentItem] = {}
        self._tokens: dict[SealedRecords, Sequence[str]] = {}
        self._stored: dict[SealedRecords, Stored] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def remember(self, batch: SealedRecords, tokens: Sequence[str]) -> None:
        """Remember the items of a batch without a response."""
        self._tokens[batch] = tokens
        self._of |= {token: SentItem(batch, number) for number, token in enumerate(tokens)}
        if len(self._tokens) > MOST:
            self.forget(next(iter(self._tokens)))

    def get(self, token: str) -> SentItem | None:
        """The record that was sent for an item, if remembered."""
        return self._of.get(token)

    def stored(self, batch: SealedRecords, stored: Stored) -> None:
        """Record that a remembered batch is stored after all."""
        if batch in self._tokens:
            self._stored[batch] = stored

    def answer(self, batch: SealedRecords) -> Stored | None:
        """The place where a batch is stored, if known."""
        return self._stored.get(batch)

    def forget(self, batch: SealedRecords) -> None:
        """Forget a refused batch: its items are sent anew."""
        for token in self._tokens.pop(batch, ()):
            self._of.pop(token, None)
        self._stored.pop(batch, None)

    def take(self, token: str) -> None:
        """Forget one item, which has its result."""
        attempt = self._of.pop(token, None)
        if attempt is not None and not any(
            each in self._of for each in self._tokens.get(attempt.batch, ())
        ):
            self.forget(attempt.batch)
