"""When a transaction, or another piece of work that broke off as a whole, is begun again.

A refusal is not tried again: no later try succeeds before an operator has repaired the destination,
and a job that fails at once says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from .._core.classify import classified
from .._core.clock import LOOP_CLOCK
from .._core.errors import ErrorClass, RefusedError, TransactionLost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .._core.sink import Classifier

R = TypeVar("R")

TRIES = 5
"""How many in all; a destination that is not there is not counted."""
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0

_AGAIN = frozenset(
    {ErrorClass.TRANSIENT, ErrorClass.UNAVAILABLE, ErrorClass.THROTTLE, ErrorClass.UNKNOWN}
)
"""Not `REFUSED`: see above."""


class Again:
    """The tries of one transaction. An unknown outcome is tried again: the ledger knows it."""

    def __init__(self, classify: Classifier | None, patience: float) -> None:
        self.count = 0
        """Tries that broke off."""
        self._classify = classify
        self._patience = patience
        self._counted = 0
        self._waited = 0.0
        self._next = FIRST_WAIT

    def wait_after(self, error: BaseException) -> float | None:
        """Seconds until another try; `None` to give up."""
        is_lost = isinstance(error, TransactionLost) and not isinstance(
            error.__cause__, RefusedError
        )
        kind = ErrorClass.TRANSIENT if is_lost else self.class_of(error)
        self.count += 1
        self._counted += kind is not ErrorClass.UNAVAILABLE
        wait, self._next = self._next, min(2 * self._next, LONGEST_WAIT)
        self._waited += wait
        is_over = self._counted >= TRIES or self._waited > self._patience
        return None if is_over or kind not in _AGAIN else wait

    def class_of(self, error: BaseException) -> ErrorClass:
        """What the destination calls it."""
        return classified(error, self._classify)


async def tried_again(work: Callable[[], Awaitable[R]], again: Again) -> R:
    """Do `work`, until it succeeds or `again` gives it up; raise its last error then. Suspends,
    also for the waits in between.
    """
    while True:
        try:
            return await work()
        except Exception as error:
            wait = again.wait_after(error)
            if wait is None:
                raise
        await LOOP_CLOCK.sleep(wait)
