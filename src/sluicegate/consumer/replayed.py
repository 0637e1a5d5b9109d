"""Replay of one record from its dead letter, outside a consumer.

1. The message is like one of a consumer: its first attempt, in its own claim.
2. There is one try, without a commit and without a timeout.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .._core.errors import TransientError
from .._core.order.lanes import Lanes
from .._core.source import Position, TopicPartition
from .claim import Claim
from .keys import alone
from .message import Message
from .results import Ack, Manual, Nak, Terminate, ToDeadLetter, no_result, reason_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from .._core.source import SourceRecord
    from .results import Result


class ReplayDesk:
    """The desk for a replayed message whose handler returned `Manual`."""

    def __init__(self) -> None:
        self._later: asyncio.Future[Result] | None = None

    def settle(self, message: Any, result: Result) -> bool:
        """Settle the message; return whether the call has an effect."""
        if self._later is None or self._later.done():
            return False
        self._later.set_result(result)
        return True

    def in_progress(self, message: Any) -> None:
        """Do nothing: a replayed message has no time limit."""

    async def settled(self) -> Result:
        """Suspend until the message is settled."""
        self._later = asyncio.get_running_loop().create_future()
        return await self._later


async def handle_again(
    handler: Callable[[Message], Awaitable[object]],
    record: SourceRecord,
    lane_key: Hashable = None,
) -> None:
    """Handle a record once. Returns when it is acknowledged; otherwise raises its error.

    Suspends until the handler ends and, after a `Manual` result, until the message is settled.
    Cancellation cancels the handler.
    """
    desk = ReplayDesk()
    partition = TopicPartition(record.topic, record.partition)
    claim = Claim(partition, 0, Position(record.offset), Lanes(), desk)
    lane = alone(record) if lane_key is None else lane_key
    result = await handler(Message(lane, 0, record, claim, 0))
    if isinstance(result, Manual):
        result = await desk.settled()
    if (error := _error_of(result)) is not None:
        raise error


def _error_of(result: object) -> BaseException | None:
    if result is None or isinstance(result, Ack):
        return None
    if isinstance(result, Nak):
        return result.error or TransientError("the handler did not acknowledge the message")
    if isinstance(result, (ToDeadLetter, Terminate)):
        return reason_of(result)
    return no_result(result)
