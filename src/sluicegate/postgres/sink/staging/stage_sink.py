"""The sinks that write into a stage."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ...._core.decorator import WrappingSink
from ...._core.send import send
from ...._core.sink import WriteResult
from ...client.errors import classify_postgres

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ...._core.batch import Batch
    from ...._core.errors import ErrorClass
    from ...._core.sink import Capabilities
    from ...._core.transaction import Transaction, Unit
    from ..open_table import OpenTable


class StageSink:
    """Writes into a stage as an open `PostgresSink` writes into its table."""

    def __init__(self, table: OpenTable) -> None:
        self._table = table

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the sink."""
        return self._table.settings.capabilities

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class of an error by its SQLSTATE."""
        return classify_postgres(error)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Write every item of `batch` as a row of the stage."""
        return await self._table.store(batch)

    @asynccontextmanager
    async def transaction(self, unit: Unit | None) -> AsyncGenerator[Transaction[Any]]:
        """A transaction on the stage; its unit is in the ledger under the target's name."""
        async with self._table.transaction(unit) as within:
            yield within

    def __repr__(self) -> str:
        return repr(self._table.settings)


class CountingSink(WrappingSink[Any]):
    """Counts the rows that a stage has accepted."""

    rows = 0

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Write the batch and count its delivered items."""
        errors = await send(self.inner, batch)
        self.rows += len(batch) - len(errors)
        return WriteResult.failed(batch, errors) if errors else None
