"""Failed rows that wait to be resent. No clock, no task, no I/O.

1. A failed row holds its key in the batcher. All failed rows of a key wait here, in the order in
   which they entered the batcher, and are resent together.
2. The record of a key's first row is its *head*: its backoff applies to the key. A record whose
   rows have several keys is a head once it is the first record of each key, and none of its rows is
   inside, except rows queued behind its own failed ones. Such a record always exists, since all
   keys have the same order.
3. A head is *driven* once, until its rows are taken or removed.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator

    from ..consumer.lanes.message import Message
    from ..consumer.progress.claim import Claim
    from .piped import FailedRow, PipedMessage, PipedRow


class HeldRows:
    """Failed rows by key."""

    def __init__(self, key_of: Callable[[Any], Hashable]) -> None:
        self._key_of = key_of
        self._rows: dict[Hashable, list[FailedRow]] = {}
        self._keys: dict[PipedMessage, list[Hashable]] = {}
        self._driven: set[PipedMessage] = set()
        self._touched: dict[Hashable, None] = {}  # in the order of their failures

    def __contains__(self, message: PipedMessage) -> bool:
        return message in self._keys

    def add(self, key: Hashable, row: FailedRow) -> None:
        """Add a failed row."""
        message = row.message
        insort(self._rows.setdefault(key, []), row, key=_number_of)
        keys = self._keys.setdefault(message, [])
        if key not in keys:
            keys.append(key)
        self._touched[key] = None

    def touch(self, message: PipedMessage) -> None:
        """Check a record again after its last row has left the batcher."""
        self._touched.update(dict.fromkeys(self._keys.get(message, ())))

    def take_heads(self) -> Iterator[PipedMessage]:
        """Yield the records that have become heads since the last call."""
        touched, self._touched = self._touched, {}
        for key in touched:
            rows = self._rows.get(key)
            if rows and self._is_head(rows[0].message):
                self._driven.add(rows[0].message)
                yield rows[0].message

    def _is_head(self, message: PipedMessage) -> bool:
        if message in self._driven:
            return False
        keys = self._keys[message]
        if message.inside and not all(self._waits_behind(row, keys) for row in message.rows):
            return False
        return all(self._rows[key][0].message is message for key in keys)

    def _waits_behind(self, row: PipedRow, keys: Collection[Hashable]) -> bool:
        """Whether a row that has not ended has one of these keys, or no key. In the latter case it
        is about to be refused, which is reported once the rows submitted with it have been
        accepted.
        """
        try:
            return self._key_of(row.item) in keys
        except Exception:  # raised by the caller's function
            return True

    def rows_of(self, message: PipedMessage) -> list[FailedRow]:
        """Return the failed rows of a record."""
        found = [self._rows[key] for key in self._keys.get(message, ())]
        return [row for rows in found for row in rows if row.message is message]

    def groups_of(self, head: PipedMessage) -> list[list[FailedRow]]:
        """Return the rows of each key of a head, including those of later records."""
        return [self._rows[key] for key in self._keys[head]]

    def take(self, head: PipedMessage) -> list[list[FailedRow]]:
        """Remove and return the rows of `groups_of`, to be resent."""
        groups: list[list[FailedRow]] = []
        for key in tuple(self._keys[head]):
            rows = self._rows.pop(key)
            groups.append(rows)
            for message in dict.fromkeys([row.message for row in rows]):
                self._leave(message, key)
        return groups

    def _leave(self, message: PipedMessage, key: Hashable) -> None:
        keys = self._keys[message]
        keys.remove(key)
        if not keys:
            del self._keys[message]
            self._driven.discard(message)

    def remove(self, message: PipedMessage) -> list[FailedRow]:
        """Remove the rows of a record; return one for each key that no failed row holds any more."""
        freed: list[FailedRow] = []
        for key in self._keys.pop(message, ()):
            rows = self._rows[key]
            left = [row for row in rows if row.message is not message]
            if left:
                self._rows[key] = left
                self._touched[key] = None
            else:
                del self._rows[key]
                freed.append(rows[0])
        self._driven.discard(message)
        return freed

    def of(self, claims: Collection[Claim]) -> list[PipedMessage]:
        """Return the records of these claims, in the order of their arrival."""
        found = [message for message in self._keys if message.claim in claims]
        return sorted(found, key=arrival)


def arrival(message: Message) -> tuple[int, int]:
    """Return the sort key of a record: its arrival, within a claim."""
    return message.claim.number, message.index


def _number_of(row: FailedRow) -> int:
    return row.receipt.number
