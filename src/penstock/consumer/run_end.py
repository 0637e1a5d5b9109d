"""When and why a consumer ends."""

from __future__ import annotations

from .._core.clock import Signal


class RunEnd:
    """The beginning of the end: asked for, or forced by an error."""

    def __init__(self) -> None:
        self.signal = Signal()
        """Fires when the end begins, or a task of the consumer has ended."""
        self.error: BaseException | None = None
        """The first error that ends the consumer."""
        self.is_begun = False

    def begin(self, error: BaseException | None = None) -> None:
        """Begin to drain; with an error, raise it afterwards. The first error counts."""
        self.error = self.error or error
        self.is_begun = True
        self.signal.fire()
