"""A transaction of the sink: records, and the offset of the source records that they were made
from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core.transaction import Attempt, has_ended

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..._core.batch import Batch
    from ..._core.positions import PositionUnit
    from ..._core.sink import Capabilities, WriteResult


class KafkaTransaction(Attempt):
    """The transaction from `KafkaSink.transaction(unit)`."""

    def __init__(
        self,
        unit: PositionUnit,
        capabilities: Capabilities,
        write: Callable[[Batch[Any]], Awaitable[WriteResult | None]],
    ) -> None:
        super().__init__(unit)
        self.capabilities = capabilities
        self._write = write
        self._is_over = False

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Send every item of `batch` as a record in this transaction, like `KafkaSink.write`.

        Raises `TransactionLost` if the transaction has ended.
        """
        if self._is_over:
            raise has_ended(self.unit)
        return await self._write(batch)

    def end(self) -> None:
        """Refuse further writes."""
        self._is_over = True
