"""What every sink around a sink has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from .opening import Openable, opened
from .sink import Capabilities, Sink, capabilities_of

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from .errors import ErrorClass

T = TypeVar("T")


class WrappingSink(Openable, Generic[T]):
    """A sink around one sink: opens it, closes it, and passes on what it promises unless a subclass knows better."""

    def __init__(self, inner: Sink[T]) -> None:
        self.inner = inner

    async def _open(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(opened(self.inner))

    @property
    def capabilities(self) -> Capabilities:
        """The wrapped sink's capabilities."""
        return capabilities_of(self.inner)

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The wrapped sink's own classification of its errors; `None` where it has none."""
        classifier = getattr(self.inner, "classify", None)
        return None if classifier is None else classifier(error)
