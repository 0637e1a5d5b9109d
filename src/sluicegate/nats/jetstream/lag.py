"""The number of unsettled messages of a partition, as counted by the server."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from ..._core.source import Unread

if TYPE_CHECKING:
    from .partition import StreamPartition
    from .session import Connected


async def unread(session: Connected, partition: StreamPartition) -> Unread:
    """Return the number of pending or undelivered messages, and the age of the oldest.

    Raises errors of the client and `RequestRefused`.
    """
    api = session.api
    state = await api.consumer(partition.number)
    messages = state.pending + state.unread
    if not messages:
        return Unread(0, 0.0)
    held = partition.intake.held
    if held:
        stored = held[min(held)].timestamp / 1000
    else:
        first = state.floor + 1 if state.pending else state.read_through + 1
        told = await api.stored_at(first, session.options.filters(partition.number))
        if told is None:
            return Unread(messages, 0.0)
        stored = datetime.fromisoformat(told).timestamp()
    return Unread(messages, max(0.0, session.clock.wall_time() - stored))
