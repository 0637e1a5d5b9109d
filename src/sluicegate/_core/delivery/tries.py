"""The errors and failed attempts of a delivery's items.

Items that fail together usually share one error and one history of attempts, so both are processed
once per object, not per item.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from operator import is_
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RetryEnd = Literal["exhausted", "given_up"]
"""Why retries have ended without success: their attempts or their time were used up, or the caller
asked to give up an outage (`give_up_after=`, `on_refused="dead_letter"`).
"""


@dataclass(frozen=True, slots=True)
class Tries:
    """The failed attempts of one item. Times are monotonic seconds of the clock."""

    count: int
    first_at: float
    last_at: float

    def and_one(self, now: float) -> Tries:
        return Tries(self.count + 1, self.first_at, now)


class Failures:
    """Errors and attempts of a delivery's failed items, by index; the ends of retries, by error."""

    __slots__ = ("_retry_ends", "errors", "tries")

    def __init__(self) -> None:
        self.errors: dict[int, BaseException] = {}
        """The error of each item's last write."""
        self.tries: dict[int, Tries] = {}
        self._retry_ends: dict[int, tuple[BaseException, RetryEnd]] = {}
        """By the id of an error, which is kept alive by its entry."""

    def forget_errors(self, indices: Iterable[int]) -> None:
        if self.errors:
            for index in indices:
                self.errors.pop(index, None)

    def count_try(self, indices: Sequence[int], now: float) -> None:
        """Count an ended attempt for each of these items."""
        tries = self.tries
        before = list(map(tries.get, indices))
        shared = before[0] if before else None
        if all(map(is_, before, repeat(shared))):  # a loop in C
            one = Tries(1, now, now) if shared is None else shared.and_one(now)
            tries.update(dict.fromkeys(indices, one))
            return
        first = Tries(1, now, now)
        for index, own in zip(indices, before, strict=True):
            tries[index] = first if own is None else own.and_one(now)

    def take_over(self, index: int, tries: Tries | None) -> None:
        """Take over an item's attempts on a branch, if there were more."""
        own = self.tries.get(index)
        if tries is not None and (own is None or tries.count > own.count):
            self.tries[index] = tries

    def end_retries(self, ends: Iterable[tuple[BaseException, RetryEnd]]) -> None:
        """Record the errors with which items have left a retry, and why."""
        self._retry_ends.update({id(error): (error, end) for error, end in ends})

    def retry_end(self, error: BaseException) -> RetryEnd | None:
        """Return why retries have ended with this error; `None` if none have."""
        known = self._retry_ends.get(id(error))
        return None if known is None else known[1]
