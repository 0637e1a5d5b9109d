"""The members of a consumer group, and their partitions. No clock, no task, no I/O.

A partition has at most one owner. A new one is offered to the members in the order in which they
joined, until one takes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core import checks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from ..._core.source import TopicPartition


class Group:
    """The members, each with a callback for new partitions, and the owners of partitions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._members: dict[object, Callable[[TopicPartition], None]] = {}
        self._owners: dict[TopicPartition, object] = {}

    def join(self, member: object, offered: Callable[[TopicPartition], None]) -> None:
        """Add a member without partitions; `offered` is called for each new partition."""
        self._members[member] = offered

    def leave(self, member: object) -> None:
        """Remove a member; its partitions become free."""
        self._members.pop(member, None)
        self._owners = {tp: owner for tp, owner in self._owners.items() if owner is not member}

    def offer(self, partition: TopicPartition) -> None:
        """Offer a partition to the members until one takes it."""
        for offered in tuple(self._members.values()):
            if partition not in self._owners:
                offered(partition)

    def own(self, partitions: Collection[TopicPartition], member: object) -> None:
        """Assign partitions to a member.

        If one has an owner, raises `ConfigError` and assigns none.
        """
        for partition in partitions:
            owner = self._owners.get(partition)
            if owner is not None:
                rule = f"must be free, and {owner!r} owns it: revoke or lose it there"
                raise checks.bad("partitions", str(partition), rule)
        self._owners.update(dict.fromkeys(partitions, member))

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Take partitions from their owners."""
        for partition in partitions:
            self._owners.pop(partition, None)

    def free(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions without an owner."""
        return [partition for partition in partitions if partition not in self._owners]
