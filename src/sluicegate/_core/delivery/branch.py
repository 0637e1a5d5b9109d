"""One branch of a forked delivery."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .activity import Hurry
from .delivery import Delivery
from .host import PassesReports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..clock import Signal
    from ..outcome import Outcome
    from .host import Details
    from .tries import RetryEnd

    Settled = Callable[[Sequence[int], Outcome, Details], None]


class BranchBooks(PassesReports["Delivery"]):
    """The books of a branch: outcomes go to its fork, reports about the destination to the parent."""

    __slots__ = ("_settled_by",)

    def __init__(self, parent: Delivery, settled_by: Settled | None) -> None:
        super().__init__(parent)
        self._settled_by = settled_by

    def settled(self, indices: Sequence[int], outcome: Outcome, details: Details) -> None:
        if self._settled_by is not None:
            self._settled_by(indices, outcome, details)


class Branch(Delivery):
    """The delivery of the parent's items on one branch."""

    __slots__ = ("_hurry", "_parent")

    def __init__(
        self, parent: Delivery, label: str, settled_by: Settled | None, maybe_applied: Iterable[int]
    ) -> None:
        super().__init__(
            len(parent.states),
            books=BranchBooks(parent, settled_by),
            pacing=parent.pacing,
            labels=(*parent.labels, label),
        )
        self.join(parent.activity)
        self.doubt(maybe_applied)
        if parent.withdrawn:
            self.withdraw(parent.withdrawn)
        self._parent = parent
        self._hurry = Hurry()

    @property
    def closed(self) -> bool:
        return self._closed or self._parent.closed

    def begin(self, indices: Sequence[int]) -> None:
        if self._parent.closed:
            raise asyncio.CancelledError
        super().begin(indices)

    def settle(self, indices: Sequence[int], outcome: Outcome, details: Details = None) -> None:
        if self._parent.closed:
            self.late += len(indices)
        else:
            super().settle(indices, outcome, details)

    def end_retries(self, ends: Sequence[tuple[BaseException, RetryEnd]]) -> None:
        self._parent.end_retries(ends)  # the errors also leave the branch

    def retry_end(self, error: BaseException) -> RetryEnd | None:
        return self._parent.retry_end(error)

    @property
    def is_hurried(self) -> bool:
        return self._hurry.is_fired or self._parent.is_hurried

    def hurry(self) -> None:
        self._hurry.fire()

    def hurries(self) -> tuple[Signal, ...]:
        return (self._hurry, *self._parent.hurries())
