"""Items whose records may be stored, or not, and where that is decided.

A batch of records without an answer is sent again as it was, by whichever write comes next to its
partition. The item that comes again in a retry then takes the answer, and is not sent a second
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._clients.kafka.produced import Stored
    from ..._clients.kafka.producer import SealedRecords

MOST = 1_000
"""Batches that are remembered. Items that are given up never ask for their answers."""


class SentItem(NamedTuple):
    """A record that was sent for an item."""

    batch: SealedRecords
    number: int
    """Its place in the batch."""


class SentItems:
    """The records of items that may be stored, by the items' tokens."""

    def __init__(self) -> None:
        self._of: dict[str, SentItem] = {}
        self._tokens: dict[SealedRecords, Sequence[str]] = {}
        self._stored: dict[SealedRecords, Stored] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def remember(self, batch: SealedRecords, tokens: Sequence[str]) -> None:
        """Note the items of a batch that has no answer."""
        self._tokens[batch] = tokens
        self._of |= {token: SentItem(batch, number) for number, token in enumerate(tokens)}
        if len(self._tokens) > MOST:
            self.forget(next(iter(self._tokens)))

    def get(self, token: str) -> SentItem | None:
        """The record that was sent for an item, if that is remembered."""
        return self._of.get(token)

    def stored(self, batch: SealedRecords, stored: Stored) -> None:
        """Note that a batch is in the log after all."""
        if batch in self._tokens:
            self._stored[batch] = stored

    def answer(self, batch: SealedRecords) -> Stored | None:
        """Where a batch is stored, once that is known."""
        return self._stored.get(batch)

    def forget(self, batch: SealedRecords) -> None:
        """Drop a batch that was refused: its items are sent anew."""
        for token in self._tokens.pop(batch, ()):
            self._of.pop(token, None)
        self._stored.pop(batch, None)

    def take(self, token: str) -> None:
        """Drop one item, which has its answer."""
        attempt = self._of.pop(token, None)
        if attempt is not None and not any(
            each in self._of for each in self._tokens.get(attempt.batch, ())
        ):
            self.forget(attempt.batch)
