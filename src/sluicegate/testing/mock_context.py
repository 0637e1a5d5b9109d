"""A context for tests of event handlers and finalisers, without a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core.order.lanes import Lanes
from .._core.source import Position, Record, TopicPartition
from ..consumer.jobs.context import EventContext
from ..consumer.jobs.state import MemoryStore
from ..consumer.lanes.message import Message
from ..consumer.progress.claim import Claim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..consumer.handling.results import Result
    from ..consumer.jobs.context import Finalise
    from ..consumer.jobs.state import StateStore


class MockContext(EventContext):
    """The context of one event, created by a test.

        context = MockContext("payload", key="k")
        assert isinstance(await handle(context), Incomplete)
        assert await context.complete() is None

    Args:
        value: the event's value.
        key: the record's own key.
        headers: the record's headers.
        partition: the event's partition; default: `("events", 0)`.

    A `JobScheduler` or an `ItemBatcher` needs a running consumer: test handlers that use one with
    `ConsumerHarness.run_events`.

    Examples:
        >>> import asyncio
        >>> from sluicegate.testing import MockContext
        >>> async def total(context):
        ...     context.store.put(context.key, context.store.get(context.key, 0) + context.value)
        >>> context = MockContext(5, key="ann")
        >>> asyncio.run(total(context))
        >>> context.store.get("ann")
        5
    """

    __slots__ = ("_store", "finalisers", "sent_on")

    def __init__(
        self,
        value: object = None,
        *,
        key: object = None,
        headers: Sequence[tuple[str, bytes]] = (),
        partition: TopicPartition = TopicPartition("events", 0),  # noqa: B008  # immutable
    ) -> None:
        self._store: StateStore = MemoryStore()
        self.finalisers: list[Finalise] = []
        """The finalisers passed to `job_complete` that have not run."""
        self.sent_on: list[Any] = []
        """The items passed to `forward`, in order."""
        claim = Claim(partition, 1, Position(0), Lanes(), _NoOwner())
        claim.tracker.admit(0, 0, 1)
        record = Record(*partition, 0, key, value, headers)
        super().__init__(Message(key, 0, record, claim, 0), self)  # type: ignore[arg-type]

    @property
    def store(self) -> StateStore:
        """The state of the partition."""
        return self._store

    def job_complete(self, finalise: Finalise) -> bool:
        """Note a finaliser; `complete` runs it. Returns true."""
        self.finalisers.append(finalise)
        return True

    def forward(self, item: Any) -> None:
        """Note an item in `sent_on`."""
        self.sent_on.append(item)

    async def complete(self) -> Any:
        """Run the next finaliser, and return its result. Raises `AssertionError` without one."""
        assert self.finalisers, "job_complete was not called"
        return await self.finalisers.pop(0)(self)


class _NoOwner:
    """An owner without effect: only the handler's result settles a message of a test."""

    def settle(self, message: Message, result: Result) -> bool:
        """Do nothing."""
        del message, result
        return False

    def in_progress(self, message: Message) -> None:
        """Do nothing: there is no time limit."""
