"""A record on its way through a batcher; its message is the receipt of its row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .._core.outcome import Outcome
from ..consumer.lanes.arrivals import ArrivalSchedule
from ..consumer.lanes.message import NOT_DECODED, Message
from ..consumer.operating.report import WaitReason

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from .._core.source import SourceRecord
    from ..consumer.progress.claim import Claim


class FailedRow(NamedTuple):
    """A row that is not known to be at its destination, and the reason."""

    receipt: PipedMessage | PipedRow
    item: Any
    outcome: Outcome
    error: BaseException | None
    is_refused: bool = False
    """Whether the batcher has refused it."""

    @property
    def message(self) -> PipedMessage:
        """The message of its record."""
        return self.receipt.message


class EndsRows(Protocol):
    """The handler of messages whose rows have ended."""

    def delivered(self, message: PipedMessage) -> None:
        """Handle a message whose rows are all safe at their destination."""

    def failed(self, row: FailedRow) -> None:
        """Handle a failed row; other rows of its record may still be inside."""

    def look(self, message: PipedMessage) -> None:
        """Handle a message whose last row has left, after others have failed."""

    def resend(self, message: PipedMessage) -> None:
        """Resend the failed rows, after their backoff or on behalf of an operator."""

    def departed(self, message: PipedMessage) -> None:
        """Handle a message that left for another reason than the success of its rows."""


class PipedMessage(Message):
    """A message that is the receipt of its row, or owns the receipts of its rows."""

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
        self._value = NOT_DECODED
        self.finalise = None
        self.is_held = False  # whether it has failed rows that wait
        self.inside = 0  # rows in the batcher

    @property
    def message(self) -> PipedMessage:
        """Return itself; the message of one of several rows is a different object."""
        return self

    @property
    def lent_for(self) -> WaitReason:  # type: ignore[override]  # a constant of other messages
        """The reason for waiting: its rows are in the batcher, or queued behind failed rows."""
        return WaitReason.QUEUED_BEHIND if self.is_held else WaitReason.IN_BATCHER

    def enters(self, end: EndsRows, item: object, number: int) -> None:
        """Register its only row, which is about to be accepted under this number."""
        self._end = end
        self.item = item
        self.number = number
        self.inside = 1

    def enters_as(
        self, end: EndsRows, items: Sequence[object], numbers: Iterator[int]
    ) -> list[PipedRow]:
        """Register its rows, which are about to be accepted; return their receipts."""
        self._end = end
        rows = [PipedRow(self, item, next(numbers)) for item in items]
        self.rows = set(rows)  # those in the batcher
        self.inside = len(rows)
        return rows

    def enters_again(self, receipt: PipedMessage | PipedRow) -> None:
        """Register a failed row that is about to be accepted again."""
        self.inside += 1
        if isinstance(receipt, PipedRow):
            self.rows.add(receipt)

    def hold(self, *, is_held: bool) -> None:
        """Set whether it has failed rows that wait."""
        self.is_held = is_held

    def resolve(self, outcome: Outcome, cause: BaseException | None, detail: object) -> None:
        """Handle the outcome of the only row, as reported by the batcher."""
        self.inside = 0
        if outcome.is_safe:
            self._end.delivered(self)
        else:
            self._end.failed(FailedRow(self, self.item, outcome, cause))

    def row_ended(self, row: PipedRow, outcome: Outcome, cause: BaseException | None) -> None:
        """Record the outcome of one of several rows."""
        self.inside -= 1
        self.rows.remove(row)
        if not outcome.is_safe:
            self._end.failed(FailedRow(row, row.item, outcome, cause))
        elif self.is_held:
            self._end.look(self)
        elif not self.inside:
            self._end.delivered(self)

    def refuse(self, receipt: PipedMessage | PipedRow, error: BaseException) -> None:
        """Record that the batcher has refused a row."""
        self.inside -= 1
        if isinstance(receipt, PipedRow):
            self.rows.remove(receipt)
        self._end.failed(FailedRow(receipt, receipt.item, Outcome.REJECTED, error, is_refused=True))

    def resend(self) -> None:
        """Resend the failed rows."""
        self._end.resend(self)

    def departed(self) -> None:
        """Handle its departure while failed rows are held."""
        self._end.departed(self)


class PipedRow:
    """The receipt of one of a record's rows."""

    __slots__ = ("item", "message", "number")

    def __init__(self, message: PipedMessage, item: object, number: int) -> None:
        self.message = message
        self.item = item
        self.number = number

    def resolve(self, outcome: Outcome, cause: BaseException | None, detail: object) -> None:
        """Handle the outcome of the row, as reported by the batcher."""
        self.message.row_ended(self, outcome, cause)


class PipedSchedule(ArrivalSchedule):
    """Messages in the order of arrival, including those with failed rows that wait."""

    message_type = PipedMessage

    def finish(self, message: Message) -> None:
        """Finish a message that was settled other than by its rows, or left to a later claim."""
        super().finish(message)
        if isinstance(message, PipedMessage) and message.is_held:
            message.departed()

    def _start(self, message: Message) -> None:
        if isinstance(message, PipedMessage) and message.is_held:
            message.resend()
        else:
            super()._start(message)
