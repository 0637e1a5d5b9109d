"""The message passed to a handler: a record, its claim, and its place in its lane.

`handle_again` replays one record from its dead letter, outside a consumer. The message is like one
of a consumer: its first attempt, in its own claim. There is one attempt, without a commit and
without a timeout.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..._core.errors import ClosedError, TransientError
from ..._core.loading import called
from ..._core.order.keys import shown
from ..._core.order.lanes import Entry, Lanes
from ..._core.source import Position, TopicPartition
from ..handling.results import Ack, Manual, Nak, Terminate, ToDeadLetter, no_result, reason_of
from ..operating.report import WaitReason
from ..progress.claim import NEVER_FAILED, Claim
from .keys import alone

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence

    from ..._core.source import SourceRecord
    from ..handling.results import Result
    from ..progress.claim import Attempts


Finaliser: TypeAlias = "Callable[[Any], Awaitable[object]]"
"""Takes the context of the event."""


NOT_DECODED = object()


class Message(Entry):
    """A record to handle.

    `value` is the record's value, or the result of the consumer's `decode` step; `record` is the
    record as delivered by the source.
    """

    __slots__ = ("_connection", "_early", "_value", "claim", "finalise", "index", "record", "size")

    lent_for = WaitReason.MANUAL
    """The reason for its wait after a handler has ended without a result."""

    def __init__(
        self, lane_key: Hashable, size: int, record: SourceRecord, claim: Claim, index: int
    ) -> None:
        # `super().__init__` is not called, since this runs once per message
        self.lane_key = lane_key
        self.size = size
        self.behind = None
        self.record = record
        self.claim = claim
        self.index = index
        self._value: object = NOT_DECODED
        self.finalise: Finaliser | None = None
        """The finaliser to run in its next turn; `None` runs the handler."""

    @property
    def value(self) -> Any:
        """The record's value, after decoding if the consumer has a decoding step."""
        value = self._value
        return self.record.value if value is NOT_DECODED else value

    def decoded(self, value: object) -> None:
        """Replace the value that handlers see; the record keeps the original."""
        self._value = value

    @property
    def connection(self) -> Any:
        """The connection whose transaction commits together with the position of this message.

        It exists only while the handler of a `flow.transaction` into `PostgresEffects`
        runs. Raises `ClosedError` otherwise.
        """
        connection = getattr(self, "_connection", None)
        if connection is None:
            raise ClosedError(
                f"{self!r} has a connection only while its handler runs in a transaction: "
                "flow.transaction(source, PostgresEffects(dsn), handler)"
            )
        return connection

    def lend(self, connection: object | None) -> None:
        """Set the connection of a running handler; `None` removes it."""
        self._connection = connection

    def begin_again(self) -> None:
        """Discard an early result, and the decoded value unless only the finaliser runs again."""
        if self.finalise is None:
            self._value = NOT_DECODED
        if hasattr(self, "_early"):
            del self._early

    def finish_by(self, finalise: Finaliser | None) -> None:
        """Set the finaliser to run in its next turn; `None` sets none."""
        self.finalise = finalise

    def settle_early(self, result: Result) -> bool:
        """Store the first result passed to `settle` while the handler is running; return whether it
        is the first.
        """
        is_first = self.early is None
        if is_first:
            self._early = result
        return is_first

    @property
    def early(self) -> Result | None:
        """The result passed to `settle` while the handler was running, or `None`."""
        return getattr(self, "_early", None)

    def header(self, name: str) -> str | None:
        """Return the last value of a header as text; `None` without the header.

        Invalid UTF-8 is escaped.
        """
        for known, value in reversed(self.record.headers):
            if known == name:
                given = cast("bytes | None", value)  # some clients deliver headers without a value
                return None if given is None else bytes(given).decode(errors="backslashreplace")
        return None

    @property
    def key(self) -> Any:
        """The record's own key."""
        return self.record.key

    @property
    def order_key(self) -> object:
        """The key that determines the order of this message."""
        return shown(self.lane_key)

    @property
    def topic(self) -> str:
        """The record's topic."""
        return self.record.topic

    @property
    def partition(self) -> int:
        """The record's partition of its topic."""
        return self.record.partition

    @property
    def offset(self) -> int:
        """The record's offset in its partition."""
        return self.record.offset

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """The record's headers, in order."""
        return self.record.headers

    @property
    def timestamp(self) -> int:
        """The record's time, in milliseconds since the epoch."""
        return self.record.timestamp

    @property
    def attempts(self) -> Attempts:
        """Failed attempts so far, in this process."""
        return self.claim.attempts.get(self.index, NEVER_FAILED)

    @property
    def is_unparked(self) -> bool:
        """Whether it comes from the park store, so that the position has already passed it."""
        return self.index < 0

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1. It restarts in another process, unless the source counts
        deliveries or attempts (JetStream, a queue in PostgreSQL).
        """
        return self.attempts.failed + 1

    def in_progress(self) -> None:
        """Restart the handler's timeout, and the source's if it has one."""
        self.claim.owner.in_progress(self)

    def settle(self, result: Result) -> bool:
        """Settle a message whose handler returns `Manual()`. To be called in the loop's thread.

        A result passed before the handler has ended counts if the handler then returns `Manual()`.
        Returns whether the call has an effect: false if the message is already settled or its claim
        has ended.
        """
        return self.claim.owner.settle(self, result)

    @property
    def coordinates(self) -> str:
        """Topic, partition and offset, such as `orders/3@1044`."""
        record = self.record
        return f"{record.topic}/{record.partition}@{record.offset}"

    def __repr__(self) -> str:
        return f"Message({self.coordinates}, attempt={self.attempt})"


class ReplayOwner:
    """The owner for a replayed message whose handler returned `Manual`."""

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
    owner = ReplayOwner()
    partition = TopicPartition(record.topic, record.partition)
    claim = Claim(partition, 0, Position(record.offset), Lanes(), owner)
    lane = alone(record) if lane_key is None else lane_key
    result = await called(handler, Message(lane, 0, record, claim, 0))
    if isinstance(result, Manual):
        result = await owner.settled()
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
