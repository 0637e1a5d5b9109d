"""The rows of one batch on one connection: statements, staging, and the transaction around them.

*Sealed* means that the server was told to keep the rows. If the connection is lost before that, the
error is transient; afterwards the outcome is unknown. A write inside a larger transaction (`Scope`)
is never sealed, since only that transaction's commit keeps its rows.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from ...copying.fields import Declined
from ..plan.temporary import EXACT, SCHEMA
from ..rows.changed import has_sequence
from ..rows.lazy import LazyRows
from ..rows.order import arranged
from .encodable import staged_columns
from .guard import Guard
from .packing import speaks_utf8

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from ..plan.plan import TablePlan
    from ..rows.lazy import Row
    from .packing import Packing
    from .remaining import Remaining
    from .scope import Scope

_COPY_WHERE = (12,)
"""The first version of PostgreSQL whose `COPY` accepts a condition."""


class Sender:
    """Sends the remaining rows of one batch according to a plan."""

    def __init__(
        self,
        con: PoolConnectionProxy[Any],
        plan: TablePlan,
        remaining: Remaining,
        scope: Scope,
        packing: Packing,
        *,
        has_sent: bool = False,
    ) -> None:
        self.con = con
        self.plan = plan
        self.remaining = remaining
        self.scope = scope
        self.copying: str | None = None
        """The table of the latest `COPY`; `None` after another statement."""
        self.place_of: Callable[[int], int] = int
        """The place of the row in a line of the latest `COPY`."""
        self.sealed = has_sent and not scope.is_block
        self.may_repeat_keys = False
        """Whether the server found one key in two rows, even if they differ in Python."""
        self.lost_statements = 0
        """How often a prepared statement was lost."""
        self.is_packed = False
        """Whether the rows of the latest `COPY` were packed here."""
        self._compares_apart = False
        self._packing: Packing | None = packing
        self._explicit = scope.is_block

    def use(self, plan: TablePlan) -> None:
        """Send the same rows with another plan."""
        self.plan = plan
        self.remaining.fit(plan)

    def use_no_copy(self) -> None:
        """Use a plan whose table does not allow `COPY`."""
        self.plan = replace(self.plan, table=replace(self.plan.table, takes_copy=False))

    def expect_repeated_keys(self) -> None:
        """Rank the rows of each key from now on."""
        self.may_repeat_keys = True

    def as_tuples(self) -> None:
        """Convert the remaining rows to tuples; fail those that asyncpg would change."""
        self.remaining.as_tuples(self.plan)
        self.remaining.drop_changed(self.plan)

    @property
    def packs(self) -> bool:
        """Whether a `COPY` into the table tries our encoder first, which changes no value."""
        types = self.plan.packed_types
        return self._packing is not None and self._packing.tries(self.con, types)

    def pack_no_more(self) -> None:
        """Let asyncpg encode the rows from now on, and those of the next batches."""
        if self._packing is not None:
            self._packing.decline()
        self._packing, self.is_packed = None, False

    @property
    def compares_types(self) -> bool:
        """Whether a `COPY` into the table fails if its columns have other types than the plan's."""
        return not self._compares_apart and self.con.get_server_version() >= _COPY_WHERE

    def compare_apart(self) -> None:
        """Compare the types before a `COPY` into the table instead of in it."""
        self._compares_apart = True

    async def forget_statements(self) -> None:
        """Drop the connection's prepared statements and types after a statement was lost."""
        self.lost_statements += 1
        await self.con.reload_schema_state()

    # -- statements --------------------------------------------------------------------------------

    async def insert_rows(self) -> None:
        """Send one `INSERT` per row, in a pipeline."""
        rows = self.remaining.rows
        places = self.plan.sent_places(rows)
        if places is None:
            places = await self._sorted_places()
        if not self.plan.returning:
            return await self._insert(self.plan.insert, arranged(rows, places))
        self.copying = None
        async with Guard(self.con):
            numbered = [(*rows[place], place) for place in places]
            found = await self.con.fetchmany(self.plan.insert, self._feed(numbered))
        return self.remaining.note_returned(self.plan.returning, found)

    async def _sorted_places(self) -> Sequence[int]:
        """The places of the rows in the order of their key, by the server."""
        statement, rows = self.plan.sorting, self.remaining.rows
        keys = [[row[place] for row in rows] for place in self.plan.key_places]
        if statement is None or any(map(has_sequence, keys)):
            return range(len(rows))
        return [row[0] for row in await self.con.fetch(statement, *keys)]

    async def insert_at_once(
        self, statement: str, *arguments: object, places: Sequence[int] | None = None
    ) -> None:
        """Send one `INSERT` of all rows, from parameters or arrays; `places` are those of the rows
        in the order of the parameters.
        """
        self.copying, self.sealed = None, not self._explicit
        await self.merge(statement, *arguments, places=places)

    async def merge(
        self, statement: str, *arguments: object, places: Sequence[int] | None = None
    ) -> None:
        """Run one statement that inserts all rows, and record the returned columns."""
        if not self.plan.returning:
            await self.con.execute(statement, *arguments)
            return
        found = await self.con.fetch(statement, *arguments)
        if found and "o" in found[0]:
            self.remaining.note_returned(self.plan.returning, found)
        elif len(found) == len(self.remaining.rows):
            # otherwise a trigger has suppressed rows, and the result does not show which
            self.remaining.note_returned(self.plan.returning, found, places or range(len(found)))

    async def copy_rows(self) -> None:
        """`COPY` the rows directly into the table."""
        plan, table = self.plan, self.plan.table
        rows, types = self.remaining.rows, plan.packed_types
        where = plan.same_types if self.compares_types else None
        await self._copy(table.name, table.schema, plan.columns, rows, types, where=where)

    def _check_unpacked(self) -> None:
        """Raise `Declined` if asyncpg would change a value of rows that were to be packed."""
        if self.remaining.changed(self.plan):
            self.is_packed = True
            raise Declined

    async def copy_binary(
        self,
        table: str,
        schema: str,
        columns: Sequence[str],
        pieces: Iterator[Any],
        where: str | None = None,
    ) -> None:
        """`COPY` rows that are encoded while they are sent."""
        self.copying = table

        async def source() -> AsyncIterator[Any]:
            for piece in pieces:
                yield piece
            if not self._explicit:
                self.sealed = True

        async with Guard(self.con):
            await self.con.copy_to_table(
                table,
                source=source(),
                columns=columns,
                schema_name=schema,
                format="binary",
                where=where,
            )

    async def stage(self, table: str) -> None:
        """Send the rows into a staging table."""
        rows = self.remaining.rows
        if isinstance(rows, LazyRows):
            pieces = rows.encoded(places=True) if speaks_utf8(self.con) else None
            if pieces is not None:
                self.place_of = int
                return await self.copy_binary(table, SCHEMA, staged_columns(self.plan), pieces)
            self.as_tuples()
        numbered = [(place, *row) for place, row in enumerate(self.remaining.rows)]
        if not self.plan.copies:
            return await self._insert(self.plan.stage(table), numbered)
        types = self.plan.packed_types if table == EXACT else ()
        types = types and ("integer", *types)
        return await self._copy(table, SCHEMA, staged_columns(self.plan), numbered, types)

    async def _insert(self, statement: str, rows: Sequence[Row]) -> None:
        self.copying = None
        async with Guard(self.con):
            await self.con.executemany(statement, self._feed(rows))

    async def _copy(
        self,
        table: str,
        schema: str,
        columns: Sequence[str],
        rows: Sequence[Row],
        types: tuple[str, ...],
        *,
        where: str | None = None,
    ) -> None:
        self.copying, self.place_of = table, int
        if self._packing is not None and types:
            pieces = self._packing.pieces(self.con, types, rows)
            self.is_packed = pieces is not None
            if pieces is not None:
                await self.copy_binary(table, schema, columns, pieces, where)
                return
            self._check_unpacked()
        async with Guard(self.con):
            await self.con.copy_records_to_table(
                table,
                records=self._feed(rows),
                columns=columns,
                schema_name=schema,
                where=where,
            )

    def _feed(self, rows: Sequence[Row]) -> Iterator[Row]:
        """The rows for one statement; asyncpg sends its end immediately after taking the last row."""
        return chain(rows, self._end_of_rows())

    def _end_of_rows(self) -> Iterator[Row]:
        if not self._explicit:
            self.sealed = True
        yield from ()

    # -- columns -----------------------------------------------------------------------------------

    async def copy_columns(self, rows: LazyRows) -> bool:
        """`COPY` columns without creating tuples; return whether they could be encoded."""
        if not speaks_utf8(self.con):
            return False
        plan = self.plan
        staged = plan.answers
        key = plan.target if plan.replaces and plan.target and not plan.first_columns else ()
        sent = rows.latest(key, plan.version) if key else rows
        pieces = sent.encoded(places=staged)
        if pieces is None:
            return False
        if not staged:
            self.place_of = int
            table, where = plan.table, plan.same_types if self.compares_types else None
            await self.copy_binary(table.name, table.schema, plan.columns, pieces, where)
            return True
        await self.begin_staging()
        self.place_of = sent.place
        await self.copy_binary(EXACT, SCHEMA, staged_columns(plan), pieces)
        await self.merge(
            plan.merge_distinct if key and sent.tells_apart(key, plan.version) else plan.merge
        )
        await self.commit()
        return True

    # -- transactions ------------------------------------------------------------------------------

    async def begin_staging(self) -> None:
        """Begin a transaction with an empty exact staging table."""
        await self.begin(self.plan.staging(again=self.scope.is_inside))

    async def begin(self, script: str) -> None:
        """Begin a transaction of several statements with `script`."""
        self._explicit, self.sealed = True, False
        await self.scope.begin(self.con, script)

    async def undo(self) -> None:
        """Roll this write back."""
        await self.scope.undo(self.con)
        self._explicit, self.sealed = self.scope.is_block, False

    async def finish(self) -> None:
        """Commit statements that were sent alone, unless they have committed by themselves."""
        if self.scope.is_open(self.con):
            await self.commit()

    async def commit(self) -> None:
        """Commit this write's statements."""
        self.sealed = not self.scope.is_inside
        await self.scope.commit(self.con)
