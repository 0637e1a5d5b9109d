"""A time limit for one write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .delivery.delivery import GRACE

if TYPE_CHECKING:
    from types import TracebackType

    from .clock import TimerHandle
    from .delivery.delivery import Delivery


class TimeLimit:
    """A context manager that cancels its task after `seconds`.

    `GRACE` seconds later it closes the delivery, in case the write ignores its cancellation. It
    swallows its own cancellation, as `asyncio.timeout` does, but needs only one timer for both
    times.
    """

    __slots__ = ("_cancelling", "_delivery", "_seconds", "_task", "_timer", "_when", "is_exceeded")

    def __init__(self, delivery: Delivery, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        clock = delivery.clock
        self.is_exceeded = False
        self._delivery = delivery
        self._task = task
        self._cancelling = task.cancelling()
        self._seconds = seconds
        self._when = clock.now() + seconds
        self._timer: TimerHandle = clock.call_at(self._when, self._exceed)

    def _exceed(self) -> None:
        self.is_exceeded = True
        self._task.cancel()
        delivery = self._delivery
        self._timer = delivery.clock.call_at(self._when + GRACE, delivery.close)

    @property
    def is_missed(self) -> bool:
        """Whether the task took twice its time and the timer did not run, because the loop was
        blocked.
        """
        late = self._delivery.clock.now() - self._when
        return late > self._seconds and not self.is_exceeded

    def __enter__(self) -> None:
        """Do nothing: the time is already running."""

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> bool:
        self._timer.cancel()
        if not self.is_exceeded:
            return False
        requests = self._task.uncancel()
        return kind is asyncio.CancelledError and requests <= self._cancelling
