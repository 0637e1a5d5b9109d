"""The lane of a record, that is, the records that are handled one after another.

1. With `ordering="key"`, a lane contains the records of one key, which is the record's own or
   computed by a function. With `partition`, it contains the records of one partition; with
   `unordered`, a single record.
2. The scope decides whether equal keys of two partitions share a lane: they do with
   `Keys(scope="topic")` or `"group"`, and do not with `"partition"`.
3. Keys are compared by the rules of `_core.order.keys`. A record with an invalid key is poison.
4. Records without a key share one lane; with `Keys(keyless="parallel")` each has its own.
5. A record that could not be decoded has the lane of its key, or its own if the key is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from ..._core.errors import NoSuchKey
from ..._core.order.keys import PLAIN, accepted, identity, key_text, shown
from ..._core.source import UndecodableRecord
from ..._core.text import repr_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable

    from ..._core.source import SourceRecord, TopicPartition


Ordering = Literal["key", "partition", "unordered"]
KeyScope = Literal["partition", "topic", "group"]
Keyless = Literal["serial", "parallel"]
ORDERINGS: tuple[Ordering, ...] = ("key", "partition", "unordered")
SCOPES: tuple[KeyScope, ...] = ("partition", "topic", "group")
KEYLESS: tuple[Keyless, ...] = ("serial", "parallel")

MOST_NAMED = 5
"""Maximum number of blocked or parked keys named in an error."""


class SingleRecord(NamedTuple):
    """The lane of a single record."""

    topic: str
    partition: int
    offset: int


class KeyRules:
    """Rules that determine the lane of a record."""

    def __init__(
        self,
        ordering: Ordering = "key",
        key: Callable[[SourceRecord], object] | None = None,
        scope: KeyScope = "partition",
        keyless: Keyless = "serial",
    ) -> None:
        self._ordering = ordering
        self._key = key
        self._scope = scope
        self._keyless = keyless
        self.takes_record_key = ordering == "key" and key is None and keyless == "serial"
        """Whether a record's own key, as an identity, is its lane: the fast path."""
        self.by_key = ordering == "key"
        """Whether records have keys; otherwise each record, or each partition, has its own lane."""
        self._has_keyless = False

    def scope_of(self, partition: TopicPartition) -> Hashable:
        """Return the scope of a partition; partitions of equal scopes share their lanes."""
        if self._ordering != "key" or self._scope == "partition":
            return partition
        return partition.topic if self._scope == "topic" else None

    def lane_of(self, record: SourceRecord) -> Hashable:
        """Return the lane's key. Raises any exception of the key function, and `TypeError` for a
        bad key.
        """
        if self._ordering == "partition":
            return None
        if self._ordering == "unordered":
            return alone(record)
        try:
            if type(record) is UndecodableRecord and not record.has_key:
                return alone(record)
            key = record.key if self._key is None else self._key(record)
        except Exception:
            if type(record) is not UndecodableRecord:
                raise
            return alone(record)
        if key is None and self._keyless == "parallel":
            return alone(record)
        return key if type(key) in PLAIN else identity(key)

    def named(self, partition: TopicPartition, name: str, record: SourceRecord) -> Hashable:
        """Return the lane's key of a record stored under this name; by the current rules, if they
        differ.
        """
        single = alone(record)
        if self.name_of(partition, single) == name:
            return single
        try:
            return self.lane_of(record)
        except Exception:
            return single

    def scope_name(self, partition: TopicPartition) -> str:
        """Return the common prefix of the names of all keys of a partition's scope in a store."""
        scope = self.scope_of(partition)
        if scope is None:
            return ""
        return f"{str(scope).replace('%', '%25').replace(' ', '%20')} "

    def name_of(self, partition: TopicPartition, key: Hashable) -> str:
        """Return the name of a lane's key in a store, such as `orders/3 customer-7`."""
        return f"{self.scope_name(partition)}{key_text(shown(key))}"

    def has_first_keyless(self, active: Collection[Hashable]) -> bool:
        """Return whether these active keys contain records without a key for the first time."""
        if self._has_keyless or self._ordering != "key" or None not in active:
            return False
        self._has_keyless = True
        return True


def alone(record: SourceRecord) -> SingleRecord:
    """Return a lane for this record only."""
    return SingleRecord(record.topic, record.partition, record.offset)


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
