"""The end of a consumer's run, and its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core.clock import Signal
from .._core.errors import SluicegateError

if TYPE_CHECKING:
    import asyncio


class TaskCancelled(SluicegateError):
    """A task of a consumer was cancelled from outside, or its source raised `CancelledError`."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the task {name!r} was cancelled, by the program or by its source; cancel the task of "
            "`run` instead"
        )


class RunEnd:
    """The start of the drain, requested or caused by an error."""

    def __init__(self) -> None:
        self.signal = Signal()
        """Fires when the drain begins, or when a task of the consumer has ended."""
        self.error: BaseException | None = None
        """The first error that ends the consumer."""
        self.is_begun = False
        self.cancellation: asyncio.CancelledError | None = None
        """The first cancellation during the drain."""

    def begin(self, error: BaseException | None = None) -> None:
        """Begin to drain; an error is raised afterwards. Only the first error counts."""
        self.error = self.error or error
        self.is_begun = True
        self.signal.fire()

    def hasten(self, cancellation: asyncio.CancelledError) -> None:
        """Record that the drain itself was cancelled: it ends at once, and the cancellation is
        raised.
        """
        self.cancellation = self.cancellation or cancellation
