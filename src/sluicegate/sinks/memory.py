"""A destination in memory."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from .._core.keywords import known_arguments
from .._core.sink import Capabilities
from .._core.transaction import Attempt, Unit, all_duplicate, check_same_parts, has_ended

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from .._core.batch import Batch
    from .._core.sink import WriteResult
    from .._core.transaction import Committed, Transaction

T = TypeVar("T")


@known_arguments()
class MemorySink(Generic[T]):
    """Keeps every written batch, for tests and examples. Never fails and never suspends.

    Examples:
        >>> import asyncio
        >>> from sluicegate import RowBatch, send
        >>> from sluicegate.sinks import MemorySink
        >>> sink = MemorySink()
        >>> asyncio.run(send(sink, RowBatch(["a", "b"])))
        {}
        >>> sink.items
        ['a', 'b']
    """

    capabilities = Capabilities(transactional=True)

    def __init__(self) -> None:
        self.batches: list[Batch[T]] = []
        """The batches in order of writing; those of a transaction are added at its commit."""
        self.ledger: dict[Unit, Committed] = {}
        """The commit of each unit."""
        self._under_way: dict[str, asyncio.Event] = {}

    @property
    def items(self) -> list[T]:
        """All items in order of writing."""
        return [item for batch in self.batches for item in batch]

    async def write(self, batch: Batch[T]) -> None:
        """Keep the batch."""
        self.batches.append(batch)

    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncGenerator[Transaction[T]]:
        """Keep the written batches when it ends. Suspends, on entering, while another attempt of
        the unit is active.
        """
        async with self._turn(unit):
            attempt = self._attempt(unit)
            try:
                yield attempt
            finally:
                attempt.close()
            self._keep(attempt)

    @asynccontextmanager
    async def _turn(self, unit: Unit | None) -> AsyncGenerator[None]:
        """Wait for the end of other attempts of this unit."""
        if unit is None:
            yield
            return
        while unit.name in self._under_way:
            await self._under_way[unit.name].wait()
        over = self._under_way[unit.name] = asyncio.Event()
        try:
            yield
        finally:
            del self._under_way[unit.name]
            over.set()

    def _attempt(self, unit: Unit | None) -> _Attempt[T]:
        attempt = _Attempt[T](self.ledger, unit)
        if unit is not None:
            for known in self.ledger:
                check_same_parts(unit, known)
            attempt.found(self.ledger.get(unit))
        return attempt

    def _keep(self, attempt: _Attempt[T]) -> None:
        if attempt.is_replay:
            return
        self.batches.extend(attempt.batches)
        attempt.commits()

    def clear(self) -> None:
        """Remove all batches and commits."""
        self.batches.clear()
        self.ledger.clear()

    def __repr__(self) -> str:
        return f"MemorySink({sum(map(len, self.batches))} items in {len(self.batches)} batches)"


class _Attempt(Attempt, Generic[T]):
    """A transaction of a `MemorySink`."""

    def __init__(self, ledger: dict[Unit, Committed], unit: Unit | None) -> None:
        super().__init__(unit)
        self._ledger = ledger
        self.batches: list[Batch[T]] = []
        self._is_over = False

    def close(self) -> None:
        """Refuse further writes."""
        self._is_over = True

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        if self._is_over:
            raise has_ended(self.unit)
        if self.is_replay:
            return all_duplicate(batch)
        self.batches.append(batch)
        return None

    def commits(self) -> None:
        super().commits()
        self._tell()

    async def wrote_letters(self, count: int) -> None:
        await super().wrote_letters(count)
        self._tell()

    def _tell(self) -> None:
        if isinstance(self.unit, Unit) and self.committed is not None:
            self._ledger[self.unit] = self.committed
