"""The lane of a record: which records are handled one after another.

1. `ordering="key"`: records of one key, by the record's own key or a function of the record. With
   `partition`, those of one partition; with `unordered`, each record by itself.
2. The scope says how far a key reaches: records of equal keys on two partitions share a lane with
   `key_scope="topic"` or `"group"`, and are strangers with `"partition"`.
3. Keys are compared as `_core.order.keys` says. A key that cannot be one makes its record poison.
4. Records without a key are in order among themselves; with `keyless="parallel"` each is alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from .._core.order.keys import PLAIN, identity, shown, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    from .._core.source import SourceRecord, TopicPartition

Ordering = Literal["key", "partition", "unordered"]
KeyScope = Literal["partition", "topic", "group"]
Keyless = Literal["serial", "parallel"]
ORDERINGS: tuple[Ordering, ...] = ("key", "partition", "unordered")
SCOPES: tuple[KeyScope, ...] = ("partition", "topic", "group")
KEYLESS: tuple[Keyless, ...] = ("serial", "parallel")


class SingleRecord(NamedTuple):
    """The lane of a single record."""

    topic: str
    partition: int
    offset: int


class KeyRules:
    """Finds the lane of a record."""

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
        """Whether a record's own key is its lane, once it is an identity: the fast path."""
        self.by_key = ordering == "key"
        """Whether records have keys; otherwise they are alone, or all of a partition together."""
        self._has_keyless = False

    def scope_of(self, partition: TopicPartition) -> Hashable:
        """Partitions of equal scopes share their lanes."""
        if self._ordering != "key" or self._scope == "partition":
            return partition
        return partition.topic if self._scope == "topic" else None

    def lane_of(self, record: SourceRecord) -> Hashable:
        """The lane's key. Raises what the key function raises, and `TypeError` for a bad key."""
        if self._ordering == "partition":
            return None
        if self._ordering == "unordered":
            return alone(record)
        key = record.key if self._key is None else self._key(record)
        if key is None and self._keyless == "parallel":
            return alone(record)
        return key if type(key) in PLAIN else identity(key)

    def named(self, partition: TopicPartition, name: str, record: SourceRecord) -> Hashable:
        """The lane's key of a record with this name: by the rules of today, if these differ."""
        single = alone(record)
        if self.name_of(partition, single) == name:
            return single
        try:
            return self.lane_of(record)
        except Exception:
            return single

    def scope_name(self, partition: TopicPartition) -> str:
        """The beginning of the names of all keys of a partition's scope in a store."""
        scope = self.scope_of(partition)
        if scope is None:
            return ""
        return f"{str(scope).replace('%', '%25').replace(' ', '%20')} "

    def name_of(self, partition: TopicPartition, key: Hashable) -> str:
        """The name of a lane's key in a store, as `orders/3 customer-7`."""
        return f"{self.scope_name(partition)}{text_of(shown(key))}"

    def has_first_keyless(self, active: Collection[Hashable]) -> bool:
        """Whether records without a key are, for the first time, among these active keys."""
        if self._has_keyless or self._ordering != "key" or None not in active:
            return False
        self._has_keyless = True
        return True


def alone(record: SourceRecord) -> SingleRecord:
    """A lane for this record only."""
    return SingleRecord(record.topic, record.partition, record.offset)
