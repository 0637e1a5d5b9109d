"""The protocol of receipts, and receipts of items that may have been applied before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .._core.outcome import Outcome


class Resolvable(Protocol):
    """The receipt of one or more items: any object with this method."""

    def resolve(self, outcome: Outcome, cause: BaseException | None, detail: object) -> None:
        """Receive an item's outcome, once per accepted item; called by the batcher.

        It runs in the middle of a step of the batcher: it must not raise, and must not use the
        batcher.
        """


class Doubtful:
    """The receipt of a queued item that an earlier turn may have applied."""

    __slots__ = ("_doubts", "receipt")

    def __init__(self, receipt: Resolvable, doubts: Doubts) -> None:
        self.receipt = receipt
        self._doubts = doubts

    def resolve(self, outcome: Outcome, cause: BaseException | None, detail: object) -> None:
        """Pass on the outcome of an item that was not sent again."""
        self._doubts.left()
        self.receipt.resolve(outcome, cause, detail)


class Doubts:
    """Counts the queued items that an earlier turn may have applied: usually none."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def wrap(self, receipt: Resolvable) -> Doubtful:
        """Mark a receipt until its item is launched."""
        self.count += 1
        return Doubtful(receipt, self)

    def left(self) -> None:
        """Count an item that has ended in the queue."""
        self.count -= 1

    def launched(self, receipts: dict[int, Resolvable]) -> list[int]:
        """Unwrap the marked receipts of a launched batch; return their indices."""
        marked = {i: each for i, each in receipts.items() if isinstance(each, Doubtful)}
        receipts.update({i: each.receipt for i, each in marked.items()})
        self.count -= len(marked)
        return [*marked]


def original(receipt: Resolvable) -> Resolvable:
    """Return the receipt as given."""
    return receipt.receipt if isinstance(receipt, Doubtful) else receipt
