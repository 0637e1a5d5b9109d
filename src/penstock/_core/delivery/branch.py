"""One branch of a forked delivery."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..outcome import Outcome
from .activity import Hurry
from .delivery import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..clock import Signal
    from ..condition import Condition
    from ..errors import ErrorClass

Settled = Callable[[Sequence[int], Outcome, Mapping[int, object] | None], None]


class Branch(Delivery):
    """The delivery of the same items on a path of their own."""

    __slots__ = ("_hurry", "_parent", "_settled_by")

    def __init__(
        self,
        parent: Delivery,
        label: str,
        settled_by: Settled | None,
        maybe_applied: Iterable[int],
    ) -> None:
        super().__init__(len(parent.states), pacing=parent.pacing, labels=(*parent.labels, label))
        self.join(parent.activity)
        self.doubt(maybe_applied)
        self._parent = parent
        self._settled_by = settled_by
        self._hurry = Hurry()

    @property
    def closed(self) -> bool:
        """Whether every item has its final outcome, here or where this branched off."""
        return self._closed or self._parent.closed

    @property
    def is_hurried(self) -> bool:
        """Whether this branch, or one that it branched off from, is no longer waited for."""
        return self._hurry.is_fired or self._parent.is_hurried

    def hurry(self) -> None:
        """Stop waiting for this branch: a backoff ends in one immediate last try."""
        self._hurry.fire()

    def hurries(self) -> tuple[Signal, ...]:
        """The signals that end a backoff because this branch is no longer waited for."""
        return (self._hurry, *self._parent.hurries())

    def heard(self, errors: Iterable[BaseException]) -> None:
        """Pass on the errors of a write, or of a part of one, as a sign of the destination's load."""
        self._parent.heard(errors)

    def report(self, source: object, condition: Condition | None) -> None:
        """Pass on the condition of a destination, as `source` knows it; `None`: available."""
        self._parent.report(source, condition)

    def retrying(self, kind: ErrorClass, items: int, delay: float) -> None:
        """Pass on that `items` will be sent again after `delay` seconds."""
        self._parent.retrying(kind, items, delay)

    def _pass_on_throttle(self, until: float) -> None:
        self._parent.throttled(until)

    def _book(
        self, indices: Sequence[int], outcome: Outcome, details: Mapping[int, object] | None
    ) -> None:
        if self._settled_by is not None:
            self._settled_by(indices, outcome, details)
