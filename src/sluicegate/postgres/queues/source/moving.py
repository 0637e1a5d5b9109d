"""Settles a part of a lease in a transaction of the queue's database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...._core.errors import PositionLost
from ..jobs.leasing import Settlement

if TYPE_CHECKING:
    from ..jobs.leasing import QueueLeases
    from .leases import Lease


class LeaseMove:
    """Settles the jobs of a lease before an offset, and keeps the lease.

    The queue does not record which process settled a job. A move that finds fewer jobs than it
    settles is therefore refused: an earlier move may have been applied, and is checked by
    `is_moved`.
    """

    def __init__(self, queue: QueueLeases, name: str, lease: Lease, offset: int) -> None:
        self._queue = queue
        self._name = name
        self._lease = lease
        self._offset = offset
        self._places = lease.settled_before(offset)

    @property
    def keeper(self) -> str:
        """The name of the queue."""
        return f"the queue {self._name}"

    async def move(self, connection: Any) -> None:
        """Settle the jobs on this connection. Raises `PositionLost` if the lease has ended, and the
        client's error if another session keeps its lane locked.
        """
        queue, lease = self._queue, self._lease
        if await queue.left_on(connection, self._places) < len(self._places):
            text = f"jobs of lease {lease.number} of {self._name} are already settled, or the sink"
            raise PositionLost(f"{text} is in another database than the queue")
        is_loose = lease.lane is None
        settlement = Settlement(lease.name, "done") if is_loose else lease.kept(self._places)
        if await queue.settle_on(connection, settlement) == "lost":
            text = f"lease {lease.number} of {self._name} has ended, or the sink"
            raise PositionLost(f"{text} is in another database than the queue")

    async def is_moved(self, connection: Any) -> bool:
        """Whether the jobs are settled, as seen by another connection after the COMMIT has ended."""
        first = await self._queue.first_left(self._lease.name, self._places, connection)
        return first is None

    def committed(self) -> None:
        """Record that the jobs are settled."""
        self._lease.settle_before(self._offset)
