"""Internals of aiokafka that a group member needs: its generation, single commits, single waits.

Written for aiokafka 0.13 and 0.14. `Insides` raises `MissingExtra` if a name no longer exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core.errors import MissingExtra

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Mapping

_NAMES = {
    "_client": ("force_metadata_update", "close"),
    "_coordinator": (
        "generation",
        "coordinator_id",
        "check_errors",
        "_coordination_task",
        "_do_commit_offsets",
        "_do_fetch_commit_offsets",
    ),
    "_fetcher": ("_create_fetch_waiter", "_records", "close"),
    "_subscription": ("reassignment_in_progress", "subscription"),
}


class Insides:
    """The internal parts of a started `AIOKafkaConsumer`."""

    def __init__(self, consumer: Any) -> None:
        for part, names in _NAMES.items():
            for name in names:
                if not hasattr(getattr(consumer, part, None), name):
                    raise MissingExtra(
                        f"this version of aiokafka has no AIOKafkaConsumer.{part}.{name}; "
                        'pip install "penstock[kafka]" installs one that has'
                    )
        self._coordinator = consumer._coordinator
        self._fetcher = consumer._fetcher
        self._subscription = consumer._subscription
        self._client = consumer._client

    @property
    def generation(self) -> int:
        """The generation of the group that this member belongs to; -1 while it is not a member."""
        generation: int = self._coordinator.generation
        return generation

    @property
    def has_coordinator(self) -> bool:
        """Whether the coordinator of the group is known and has answered the last request."""
        return self._coordinator.coordinator_id is not None

    @property
    def has_died(self) -> bool:
        """Whether coordination has ended with an error inside aiokafka."""
        task: asyncio.Task[object] = self._coordinator._coordination_task
        return task.done()

    def raise_death(self) -> None:
        """Raise the error with which coordination has ended, if there is one."""
        task: asyncio.Task[object] = self._coordinator._coordination_task
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    @property
    def is_reassigning(self) -> bool:
        """Whether a rebalance is in progress; no records are returned meanwhile."""
        reassigning: bool = self._subscription.reassignment_in_progress
        return reassigning

    def raise_fault(self) -> None:
        """Raise the pending error of coordination, once; coordination then continues."""
        self._coordinator.check_errors()

    def state(self, partition: Any) -> Any:
        """Return the state of an assigned partition; `None` for other partitions."""
        subscription = self._subscription.subscription
        assignment = None if subscription is None else subscription.assignment
        return None if assignment is None else assignment.state_value(partition)

    def has_arrived(self, partition: tuple[str, int]) -> bool:
        """Return whether the partition has fetched data that was not taken yet.

        That is records, transaction markers or an error.
        """
        return partition in self._fetcher._records

    def news(self) -> asyncio.Future[None]:
        """Return a future that is done when records or an error have arrived."""
        waiter: asyncio.Future[None] = self._fetcher._create_fetch_waiter()
        return waiter

    async def refresh(self) -> None:
        """Suspend until a broker has sent new metadata of the topics."""
        await self._client.force_metadata_update()

    async def commit(self, offsets: Mapping[Any, Any]) -> None:
        """Send one commit in the current generation, and suspend until its answer."""
        await self._coordinator._do_commit_offsets(None, offsets)

    async def committed(self, partitions: Collection[Any]) -> Mapping[Any, Any]:
        """Request stored offsets with their metadata, once."""
        found: Mapping[Any, Any] = await self._coordinator._do_fetch_commit_offsets(partitions)
        return found

    async def close_fetcher(self) -> None:
        """Stop fetching records."""
        await self._fetcher.close()

    async def close_client(self) -> None:
        """Close the connections."""
        await self._client.close()
