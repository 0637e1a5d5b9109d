"""Base of the sinks that wrap another sink.

A decorator wraps a transaction as it wraps its sink: `transaction` enters the wrapped sink's and
puts a second view of the decorator, made by `around` with the same state, around its writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from .enlisted import enlisted
from .opening import Openable, opened
from .sink import Capabilities, Sink, capabilities_of, classifier_of
from .transaction import transaction_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AsyncExitStack
    from typing import Self

    from .batch import Batch
    from .errors import ErrorClass
    from .result import WriteResult
    from .transaction import Transaction, Unit

T = TypeVar("T")


class WrappingSink(Openable, ABC, Generic[T]):
    """A sink around one sink: opens and closes it, and has its capabilities unless overridden."""

    def __init__(self, inner: Sink[T]) -> None:
        self.inner = inner

    @abstractmethod
    async def write(self, batch: Batch[T]) -> WriteResult | None:
        """Write through the wrapped sink."""

    async def _open(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(opened(self.inner))

    @property
    def capabilities(self) -> Capabilities:
        """The wrapped sink's capabilities."""
        return capabilities_of(self.inner)

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The wrapped sink's own classification of its errors; `None` where it has none."""
        classifier = classifier_of(self.inner)
        return None if classifier is None else classifier(error)

    def _make_state(self) -> None:
        """Create the state that is otherwise created at the first write, for `around` to share."""

    def around(self, inner: Sink[T]) -> Self:
        """This decorator with its settings and shared state around another sink; open as long."""
        self._make_state()
        made = object.__new__(type(self))
        vars(made).update(vars(self), inner=inner)
        return made

    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncGenerator[Transaction[T]]:
        """The wrapped sink's transaction, its writes decorated. Raises and suspends as that."""
        async with transaction_of(self.inner, unit) as within:
            yield enlisted(self.around, within)
