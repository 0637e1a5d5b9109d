"""How the rows of one batch are sent: the statements of the quick ways, staging, and the
transaction around them.

*Sealed* means: the server has been told to keep the rows. A connection lost before that is
transient, one lost after it is unknown. A write within a larger transaction (`Scope`) is never
sealed: only that transaction's commit keeps its rows.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from .encoding import staged_columns
from .guard import Guard
from .refusals import asked_again
from .remaining import Remaining
from .rows import LazyRows, are_cut, fractions, shortest
from .scope import ALONE
from .sql import EXACT, SCHEMA
from .table import is_current

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from .refusals import Judge
    from .rows import Row
    from .scope import Scope
    from .sql import Plan
    from .strategy import Ways

SENT_AT_ONCE = 1 << 18
"""Bytes of columns that are handed to the connection in one piece."""
STAGED_FROM = 2
"""From how many lost prepared statements on a write prepares none."""


class Sending(Remaining):
    """The rows of one batch, and the connection that they are sent on."""

    def __init__(
        self,
        con: PoolConnectionProxy[Any],
        plan: Plan,
        judge: Judge,
        *,
        indices: Sequence[int],
        rows: Sequence[Row],
        errors: dict[int, Exception],
        maybe: frozenset[int],
        keys: Sequence[object] | None = None,
        scope: Scope = ALONE,
    ) -> None:
        super().__init__(indices=indices, rows=rows, errors=errors, maybe=maybe, keys=keys)
        self._con = con
        self._scope = scope
        self._plan = plan
        self._judge = judge
        self._copying: str | None = None
        self._line: Callable[[int], int] = int
        """From a line of what is copied to its row's place."""
        self._explicit = scope.is_inside
        self._sealed = False
        self._stale = 0
        """How often a prepared statement was gone."""
        self._is_current = False
        """Whether the plan was compared with the table."""
        self._is_read_again = False
        self._is_sifted_again = False

    @property
    def plan(self) -> Plan:
        """The plan that the rows were written by: another one where the table was changed."""
        return self._plan

    # -- the quick ways ----------------------------------------------------------------------------

    async def _quickly(self, ways: Ways) -> None:
        plan = self._plan
        if isinstance(self._rows, LazyRows):
            self._drop(self._rows.refused())
            if self._rows and not plan.returning and await self._copy_columns(self._rows):
                return None
        self._as_rows()
        if not self._rows:
            return None
        way = self._way(ways)
        if way == "insert":
            return await self._insert_rows()
        if way == "unnest" and plan.merge_arrays is not None:
            self._copying, self._sealed = None, not self._explicit
            return await self._merge(plan.merge_arrays, *zip(*self._rows, strict=True))
        if way == "copy":
            return await self._copy(plan.table.name, plan.table.schema, plan.columns, self._rows)
        await self._begin(plan.staging(again=self._scope.is_inside))
        await self._stage(EXACT)
        await self._merge(plan.merge)
        return await self._commit()

    def _way(self, ways: Ways) -> str:
        return ways.choose(self._plan, len(self._rows)) if self._stale < STAGED_FROM else "staging"

    async def _be_current(self, ways: Ways) -> None:
        """Read the table again if its columns have changed, once, before a value is judged, cast or
        encoded by their types.

        Bytes of a number may be those of a date as well, and asyncpg keeps the types that it has
        met in a `COPY`. A statement with parameters is read anew by the server, so it is asked for
        only where asyncpg would cut a value to the type of a column before.
        """
        if self._is_current or not (
            self._is_by_types(ways) or are_cut(self._rows, self._plan.cutting_places)
        ):
            return
        if not await asked_again(
            self._con, partial(is_current, self._con, self._plan.table, self._plan.columns)
        ):
            changed = TypeError("the table's columns are not those that the sink was opened with")
            self._go_by(await self._judge.read_again(self._con, self._plan, changed))
            await self._con.reload_schema_state()
        self._is_current = True

    def _is_by_types(self, ways: Ways) -> bool:
        return isinstance(self._rows, LazyRows) or self._way(ways) in {"copy", "staging"}

    def _go_by(self, plan: Plan) -> None:
        """Another plan for the same rows."""
        self._plan = plan
        if isinstance(self._rows, LazyRows):
            self._rows = self._rows.by([plan.table.column(name) for name in plan.columns])

    def _as_rows(self) -> None:
        """From here on the rows are tuples. Columns whose values have no form as Python's objects
        refuse single rows.
        """
        if isinstance(self._rows, LazyRows):
            self._drop(self._rows.refused())
            assert isinstance(self._rows, LazyRows)
            self._drop(self._rows.unreadable())
        self._drop(fractions(self._rows, self._plan.cutting_places, self._plan.columns))
        self._rows = shortest(
            list(self._rows) if isinstance(self._rows, LazyRows) else self._rows,
            self._plan.numeric_places,
        )

    async def _insert_rows(self) -> None:
        if not self._plan.returning:
            return await self._insert(self._plan.insert, self._rows)
        self._copying = None
        async with Guard(self._con):
            rows = [(*row, place) for place, row in enumerate(self._rows)]
            found = await self._con.fetchmany(self._plan.insert, self._feed(rows))
        return self._note_returned(self._plan.returning, found)

    async def _merge(self, statement: str, *arguments: object) -> None:
        if not self._plan.returning:
            await self._con.execute(statement, *arguments)
            return
        found = await self._con.fetch(statement, *arguments)
        if self._plan.mode != "error":
            self._note_returned(self._plan.returning, found)
        elif len(found) == len(
            self._rows
        ):  # else a trigger has kept rows out, and the answer does not say which
            self._note_returned(self._plan.returning, found, range(len(found)))

    async def _insert(self, statement: str, rows: Sequence[Row]) -> None:
        self._copying = None
        async with Guard(self._con):
            await self._con.executemany(statement, self._feed(rows))

    async def _copy(
        self, table: str, schema: str, columns: Sequence[str], rows: Sequence[Row]
    ) -> None:
        self._copying, self._line = table, int
        async with Guard(self._con):
            await self._con.copy_records_to_table(
                table, records=self._feed(rows), columns=columns, schema_name=schema
            )

    async def _copy_columns(self, rows: LazyRows) -> bool:
        """Send columns as they are; say whether they could be."""
        plan = self._plan
        staged = plan.mode != "error" or not plan.table.takes_copy
        key = plan.target if plan.mode == "update" and plan.target else ()
        sent = rows.latest(key, plan.version) if key else rows
        data = sent.encoded(places=staged)
        if data is None:
            return False
        if not staged:
            self._line = int
            await self._copy_binary(plan.table.name, plan.table.schema, plan.columns, data)
            return True
        await self._begin(plan.staging(again=self._scope.is_inside))
        self._line = sent.place
        await self._copy_binary(EXACT, SCHEMA, staged_columns(plan), data)
        await self._merge(plan.merge_distinct if key and sent.tells_apart(key) else plan.merge)
        await self._commit()
        return True

    async def _copy_binary(
        self, table: str, schema: str, columns: Sequence[str], data: memoryview
    ) -> None:
        self._copying = table

        async def source() -> AsyncIterator[Any]:
            for start in range(0, len(data), SENT_AT_ONCE):
                yield data[start : start + SENT_AT_ONCE]
            if not self._explicit:
                self._sealed = True

        async with Guard(self._con):
            await self._con.copy_to_table(
                table, source=source(), columns=columns, schema_name=schema, format="binary"
            )

    async def _stage(self, table: str) -> None:
        if isinstance(self._rows, LazyRows):
            data = self._rows.encoded(places=True)
            if data is not None:
                self._line = int
                return await self._copy_binary(table, SCHEMA, staged_columns(self._plan), data)
            self._as_rows()
        rows = [(place, *row) for place, row in enumerate(self._rows)]
        if not self._plan.copies:
            return await self._insert(self._plan.stage(table), rows)
        return await self._copy(table, SCHEMA, staged_columns(self._plan), rows)

    def _feed(self, rows: Sequence[Row]) -> Iterator[Row]:
        """The rows for one statement. asyncpg sends the statement's end as soon as it has taken the
        last one.
        """
        return chain(rows, self._end_of_rows())

    def _end_of_rows(self) -> Iterator[Row]:
        if not self._explicit:
            self._sealed = True
        yield from ()

    # -- transactions ------------------------------------------------------------------------------

    async def _begin(self, script: str) -> None:
        self._explicit, self._sealed = True, False
        await self._scope.begin(self._con, script)

    async def _undo(self) -> None:
        await self._scope.undo(self._con)
        self._explicit, self._sealed = self._scope.is_inside, False

    async def _commit(self) -> None:
        self._sealed = not self._scope.is_inside
        await self._scope.commit(self._con)
