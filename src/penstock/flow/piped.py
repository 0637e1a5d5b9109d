"""A record on its way through a batcher: its message is the receipt of its row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .._core.outcome import Outcome
from ..consumer.arrivals import ArrivalSchedule
from ..consumer.message import Message
from ..consumer.wait_reason import WaitReason

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from .._core.source import SourceRecord
    from ..consumer.claim import Claim


class FailedRow(NamedTuple):
    """A row that is not at its destination for sure, and why."""

    receipt: PipedMessage | PipedRow
    item: Any
    outcome: Outcome
    error: BaseException | None
    is_refused: bool = False
    """Whether the batcher has not accepted it."""

    @property
    def message(self) -> PipedMessage:
        """The message of its record."""
        return self.receipt.message


class EndsRows(Protocol):
    """Where messages go whose rows have ended."""

    def delivered(self, message: PipedMessage) -> None:
        """All rows are safe at their destination."""

    def failed(self, row: FailedRow) -> None:
        """A row has failed; perhaps others of its record are still inside."""

    def look(self, message: PipedMessage) -> None:
        """The last row is no longer inside, and others have failed."""

    def resend(self, message: PipedMessage) -> None:
        """Send the failed rows again: their backoff is over, or an operator wants it."""

    def departed(self, message: PipedMessage) -> None:
        """The message has left otherwise than by the success of its rows."""


class PipedMessage(Message):
    """A message, and the receipt of its row; of several rows, the owner of their receipts."""

    __slots__ = ("_end", "inside", "is_held", "item", "number", "rows")

    def __init__(
        self, lane_key: Hashable, size: int, record: SourceRecord, claim: Claim, index: int
    ) -> None:
        # not super().__init__: this runs once per message
        self.lane_key = lane_key
        self.size = size
        self.behind = None
        self.record = record
        self.claim = claim
        self.index = index
        self.is_held = False  # whether rows of it have failed, and wait
        self.inside = 0  # rows in the batcher

    @property
    def message(self) -> PipedMessage:
        """Itself; a row of several has another message."""
        return self

    @property
    def lent_for(self) -> WaitReason:  # type: ignore[override]  # a constant of other messages
        """What it waits for: its rows, or those of its key that have failed before it."""
        return WaitReason.QUEUED_BEHIND if self.is_held else WaitReason.IN_BATCHER

    def enters(self, end: EndsRows, item: object, number: int) -> None:
        """Note that its only row is about to be accepted, as the row of this number."""
        self._end = end
        self.item = item
        self.number = number
        self.inside = 1

    def enters_as(
        self, end: EndsRows, items: Sequence[object], numbers: Iterator[int]
    ) -> list[PipedRow]:
        """Note that its rows are about to be accepted; return their receipts."""
        self._end = end
        rows = [PipedRow(self, item, next(numbers)) for item in items]
        self.rows = set(rows)  # those in the batcher
        self.inside = len(rows)
        return rows

    def enters_again(self, receipt: PipedMessage | PipedRow) -> None:
        """Note that a failed row is about to be accepted again."""
        self.inside += 1
        if isinstance(receipt, PipedRow):
            self.rows.add(receipt)

    def hold(self, *, is_held: bool) -> None:
        """Note whether rows of it have failed, and wait."""
        self.is_held = is_held

    def resolve(self, outcome: Outcome, cause: BaseException | None, detail: object) -> None:
        """The batcher's call with the outcome of the only row."""
        self.inside = 0
        if outcome.is_success:
            self._end.delivered(self)
        else:
            self._end.failed(FailedRow(self, self.item, outcome, cause))

    def row_ended(self, row: PipedRow, outcome: Outcome, cause: BaseException | None) -> None:
        """Note the outcome of one of several rows."""
        self.inside -= 1
        self.rows.remove(row)
        if not outcome.is_success:
            self._end.failed(FailedRow(row, row.item, outcome, cause))
        elif self.is_held:
            self._end.look(self)
        elif not self.inside:
            self._end.delivered(self)

    def refuse(self, receipt: PipedMessage | PipedRow, error: BaseException) -> None:
        """Note that the batcher has not accepted a row."""
        self.inside -= 1
        if isinstance(receipt, PipedRow):
            self.rows.remove(receipt)
        self._end.failed(FailedRow(receipt, receipt.item, Outcome.REJECTED, error, is_refused=True))

    def resend(self) -> None:
        """Send the failed rows again."""
        self._end.resend(self)

    def departed(self) -> None:
        """Note that it has left while failed rows of it were held."""
        self._end.departed(self)


class PipedRow:
    """The receipt of one of a record's rows."""

    __slots__ = ("item", "message", "number")

    def __init__(self, message: PipedMessage, item: object, number: int) -> None:
        self.message = message
        self.item = item
        self.number = number

    def resolve(self, outcome: Outcome, cause: BaseException | None, detail: object) -> None:
        """The batcher's call with the outcome of the row."""
        self.message.row_ended(self, outcome, cause)


class PipedSchedule(ArrivalSchedule):
    """Messages in the order of their arrival, some with rows that wait to be sent again."""

    message_type = PipedMessage

    def finish(self, message: Message) -> None:
        """A message is settled otherwise than by its rows, or left to a later claim."""
        super().finish(message)
        if isinstance(message, PipedMessage) and message.is_held:
            message.departed()

    def _start(self, message: Message) -> None:
        if isinstance(message, PipedMessage) and message.is_held:
            message.resend()
        else:
            super()._start(message)
