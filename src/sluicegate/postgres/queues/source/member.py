"""The membership of a process in its group of consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._core.checks import bad

if TYPE_CHECKING:
    from ..jobs.leasing import QueueLeases
    from .options import QueueOptions

REST = 1.0
"""The shortest time in seconds between two moves of automatic ranges."""


class Member:
    """Reports this process to the queue as alive. Automatic ranges of slots follow the members."""

    def __init__(self, queue: QueueLeases, options: QueueOptions) -> None:
        self._queue = queue
        self._options = options
        self._is_sticky: bool | None = None

    @property
    def has_joined(self) -> bool:
        """Whether the queue was found."""
        return self._is_sticky is not None

    @property
    def every(self) -> float:
        """Seconds between two calls of `tell`."""
        every = self._options.extend_every
        return min(every, REST) if self._is_sticky else every

    async def join(self) -> None:
        """Find the queue, and become a member. Raises `ConfigError` if it does not exist, and
        errors of the client.
        """
        found = await self._queue.check()
        if found is None:
            create = f"`sluicegate queue create {self._options.queue}`"
            raise bad("queue", self._options.queue, f"does not exist; create it with {create}")
        self._is_sticky = found
        await self.tell()

    async def tell(self) -> None:
        """Report that this process is alive. Raises errors of the client."""
        await self._queue.seen(self._options.lease, balances=bool(self._is_sticky), pause=REST)

    async def leave(self) -> None:
        """End the membership. Raises errors of the client."""
        await self._queue.leave()
