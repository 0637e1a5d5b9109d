"""Batches written as rows, by the sink itself and in its transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core.arrow import ArrowBatch
from ..._core.batch import RowBatch
from ..._core.values.rows import RowMaker
from .plan.strategy import Chooser
from .repair.judge import Judge
from .write import TableWrite
from .writing.direct import write_directly
from .writing.packing import Packing
from .writing.remaining import Remaining
from .writing.scope import ALONE

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    from ..._core.batch import Batch
    from ..._core.sink import WriteResult
    from ..._core.values.rows import GivenRows, RowFunction
    from ..client.access import Access
    from .plan.plan import TablePlan
    from .plan.target import Target
    from .writing.scope import Scope


class TableWriter:
    """Converts batches to rows, and writes them on the given connection with the given plan."""

    def __init__(self, target: Target, access: Access, row: RowFunction | None) -> None:
        self.judge = Judge(target, access.place)
        self._chooser = Chooser(target.strategy, access.statement_cache)
        self._packing = Packing()
        self._maker = RowMaker(target.columns, row)
        self._takes_columns = row is None

    def rows_of(self, batch: Batch[Any], plan: TablePlan) -> GivenRows:
        """The rows of a batch, and an error for each item that cannot become one."""
        if (
            not isinstance(batch, RowBatch)
            and isinstance(batch, ArrowBatch)
            and self._takes_columns
            and plan.copies
            and plan.reads_text
        ):
            from .rows.columns import column_rows  # pyarrow is installed: it made the batch

            found = column_rows(
                batch.record_batch, [plan.table.column(name) for name in plan.columns]
            )
            if found is not None:
                return range(len(found)), found, {}
        return self._maker.rows(batch)

    async def run(
        self,
        con: PoolConnectionProxy[Any],
        plan: TablePlan,
        batch: Batch[Any],
        given: GivenRows,
        *,
        maybe: frozenset[int] = frozenset(),
        scope: Scope = ALONE,
    ) -> tuple[WriteResult | None, TablePlan]:
        """Write the rows of a batch; return the result, and a new plan if the table was changed."""
        failed: Exception | None = None
        if not maybe:
            try:
                if await write_directly(con, plan, given, self._chooser, scope):
                    return None, plan
            except Exception as error:
                failed = error
        remaining = Remaining(given, maybe=maybe, keys=batch.keys)
        write = TableWrite(
            con, plan, self.judge, remaining, scope, packing=self._packing, failed=failed
        )
        await write.run(self._chooser)
        return remaining.answer(len(batch)), write.plan
