"""The rows of one batch on one connection: the statements that store them, and their transaction.

1. The usual way is one statement, chosen once by the number of rows. Outside a block it is its own
   transaction, which the server commits by itself.
2. *Sealed* means that the server was told to keep the rows. If the connection is lost before that,
   the error is transient; afterwards the outcome is unknown. A write inside a larger transaction
   (`Scope`) is never sealed, since only that transaction's commit keeps its rows.
3. `ON CONFLICT DO UPDATE` refuses to replace a row twice in one statement. If keys may be equal,
   the rows are sent from arrays, and ranked by the server. Keys that differ in Python but not in the
   column's type are detected by the server (`Blame`), and the write is repeated.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..._core.clock import LOOP_CLOCK
from ..client.errors import is_gone
from ..copying.rows import Declined
from .diagnosis import query_again
from .encoding import speaks_utf8, staged_columns
from .plan import EXACT, SCHEMA
from .rows.order import arrange
from .rows.values import LazyRows, are_rounded, documents, has_sequence, shortest
from .table import is_current

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from asyncpg.pool import PoolConnectionProxy

    from .diagnosis import Diagnosis
    from .encoding import Packing
    from .plan import TablePlan
    from .remaining import Remaining
    from .rows.values import Row
    from .scope import Scope
    from .strategy import Chooser

_COPY_WHERE = (12,)
"""The first version of PostgreSQL whose `COPY` accepts a condition."""
STAGED_FROM = 2
"""Number of lost prepared statements after which a write prepares none."""


class Sender:
    """Sends the remaining rows of one batch according to a plan."""

    def __init__(
        self,
        con: PoolConnectionProxy[Any],
        plan: TablePlan,
        remaining: Remaining,
        scope: Scope,
        *,
        chooser: Chooser,
        packing: Packing,
        diagnosis: Diagnosis,
    ) -> None:
        self.con = con
        self.plan = plan
        self.remaining = remaining
        self.scope = scope
        self.diagnosis = diagnosis
        self.copying: str | None = None
        """The table of the latest `COPY`; `None` after another statement."""
        self.place_of: Callable[[int], int] = int
        """The place of the row in a line of the latest `COPY`."""
        self.sealed = False
        self.may_repeat_keys = False
        """Whether the server found one key in two rows, even if they differ in Python."""
        self.lost_statements = 0
        """How often a prepared statement was lost."""
        self.is_packed = False
        """Whether the rows of the latest `COPY` were packed here."""
        self._chooser = chooser
        self._chosen: tuple[int, str] | None = None
        """The number of rows for which a statement was chosen last, and that statement."""
        self._is_staged = False
        self._is_compared = False
        self._compares_apart = False
        self._packing: Packing | None = packing
        self._explicit = scope.is_block

    def use(self, plan: TablePlan) -> None:
        """Send the same rows with another plan."""
        self.plan, self._chosen = plan, None
        self.remaining.fit(plan)

    def use_no_copy(self) -> None:
        """Use a plan whose table does not allow `COPY`."""
        self.plan = replace(self.plan, table=replace(self.plan.table, takes_copy=False))
        self._chosen = None

    def expect_repeated_keys(self) -> None:
        """Rank the rows of each key from now on."""
        self.may_repeat_keys = True

    def as_tuples(self) -> None:
        """Convert the remaining rows to tuples; fail those that asyncpg would change."""
        self.remaining.as_tuples(self.plan)
        self.remaining.drop_changed(self.plan)

    @property
    def _packs(self) -> bool:
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
        """Compare the types before a `COPY` into the table instead of in it, from now on."""
        self._compares_apart, self._is_compared = True, False

    async def forget_statements(self) -> None:
        """Drop the connection's prepared statements and types after a statement was lost."""
        self.lost_statements += 1
        await self.con.reload_schema_state()

    def note_plain_insert(self) -> None:
        """Continue after `plain_insert` was sent for the remaining rows."""
        self.sealed = not self._explicit
        self.remaining.as_tuples(self.plan)

    # -- the usual way -----------------------------------------------------------------------------

    async def send(self) -> None:
        """Write the remaining rows, in one transaction, with the statement for their number."""
        await self.compare_types()
        if not (isinstance(self.remaining.rows, LazyRows) and await self._copy_columns()):
            await self._send_tuples()
        if self.scope.opening and self.con.is_in_transaction():
            await self.commit()

    async def _send_tuples(self) -> None:
        remaining = self.remaining
        remaining.as_tuples(self.plan)
        if self._statement != "copy" or not self._packs:
            remaining.drop_changed(self.plan)
        if not remaining.rows:
            return None
        statement = self._statement
        if statement == "values":
            repeats = self.may_repeat_keys
            found = _statement_for_values(self.plan, remaining.rows, may_repeat=repeats)
            if found is not None:
                return await self._insert_at_once(*found)
        if statement == "copy":
            return await self._copy_rows()
        if statement != "staging":
            columns, arrays = list(zip(*remaining.rows, strict=True)), self.plan.merge_arrays
            if arrays is not None and not any(map(has_sequence, columns)):
                return await self._insert_at_once(arrays, columns)
            self._is_staged = True
            await self.compare_types()
            return await self._send_tuples()
        await self.begin_staging()
        await self.stage(EXACT)
        await self.con.execute(self.plan.merge)
        return await self.commit()

    @property
    def _statement(self) -> str:
        """The statement for the number of remaining rows; staging if prepared statements keep
        getting lost, or neither parameters nor arrays can have the rows.
        """
        if self._is_staged or self.lost_statements >= STAGED_FROM:
            return "staging"
        count = len(self.remaining.rows)
        if self._chosen is None or self._chosen[0] != count:
            self._chosen = count, self._chooser.choose(self.plan, count)
        return self._chosen[1]

    async def compare_types(self) -> None:
        """Compare the columns with the plan, once, before values are checked, cast or encoded by type.

        The bytes of a number may also be a valid date, and asyncpg caches the types that it has
        seen in a `COPY`. A `COPY` directly into the table compares the types itself, without a
        round trip; that is sufficient unless values are converted by type beforehand. The server
        replans a statement with parameters, so for such a statement the comparison is made only if
        asyncpg would truncate a value to the column's previous type.
        """
        if self._is_compared or not self._depends_on_types():
            return
        con, plan = self.con, self.plan
        if not await query_again(con, partial(is_current, con, plan.table, plan.columns)):
            changed = TypeError("the table's columns have changed since the sink was opened")
            self.use(await self.diagnosis.read_again(con, plan, changed))
            await con.reload_schema_state()
        self._is_compared = True

    def _depends_on_types(self) -> bool:
        plan, rows = self.plan, self.remaining.rows
        if isinstance(rows, LazyRows):
            return True
        statement = self._statement
        if statement == "copy" and self.compares_types:
            casts = plan.json_places or plan.numeric_places
            return bool(casts) or (not self._packs and bool(self.remaining.changed(plan)))
        if statement in {"copy", "staging"}:
            return True
        return bool(self.remaining.changed(plan)) or are_rounded(rows, plan.rounded_places)

    # -- statements --------------------------------------------------------------------------------

    async def _insert_at_once(self, statement: str, arguments: Iterable[object]) -> None:
        """Send one `INSERT` of all rows, from parameters or arrays."""
        self.copying, self.sealed = None, not self._explicit
        await self.con.execute(statement, *arguments)

    async def _copy_rows(self) -> None:
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

    async def _copy_binary(
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

        async with _Guard(self.con):
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
            pieces = rows.encode(places=True) if speaks_utf8(self.con) else None
            if pieces is not None:
                self.place_of = int
                return await self._copy_binary(table, SCHEMA, staged_columns(self.plan), pieces)
            self.as_tuples()
        numbered = [(place, *row) for place, row in enumerate(self.remaining.rows)]
        if not self.plan.copies:
            return await self._insert(self.plan.stage(table), numbered)
        types = self.plan.packed_types if table == EXACT else ()
        types = types and ("integer", *types)
        return await self._copy(table, SCHEMA, staged_columns(self.plan), numbered, types)

    async def _insert(self, statement: str, rows: Sequence[Row]) -> None:
        self.copying = None
        async with _Guard(self.con):
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
                await self._copy_binary(table, schema, columns, pieces, where)
                return
            self._check_unpacked()
        async with _Guard(self.con):
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

    async def _copy_columns(self) -> bool:
        """`COPY` columns without creating tuples; return whether that was possible."""
        self.remaining.drop_refused()
        rows = self.remaining.rows
        if not isinstance(rows, LazyRows) or not rows:
            return False
        if not speaks_utf8(self.con):
            return False
        plan = self.plan
        staged = plan.needs_staging
        key = plan.target if plan.replaces and plan.target and not plan.first_columns else ()
        sent = rows.latest(key, plan.version) if key else rows
        pieces = sent.encode(places=staged)
        if pieces is None:
            return False
        if not staged:
            self.place_of = int
            table, where = plan.table, plan.same_types if self.compares_types else None
            await self._copy_binary(table.name, table.schema, plan.columns, pieces, where)
            return True
        await self.begin_staging()
        self.place_of = sent.place
        await self._copy_binary(EXACT, SCHEMA, staged_columns(plan), pieces)
        await self.con.execute(
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

    async def commit(self) -> None:
        """Commit this write's statements."""
        self.sealed = not self.scope.is_inside
        await self.scope.commit(self.con)


def plain_insert(plan: TablePlan, rows: Sequence[Row]) -> tuple[str, Iterable[object]] | None:
    """The `INSERT` of all rows, and its parameters; `None` if a row may be at fault, or a value
    must be compared with the types of the table first.
    """
    if plan.json_places:
        rows, refused = documents(rows, plan.json_places, plan.columns)
        if refused:
            return None
    if plan.numeric_places:
        rows = shortest(rows, plan.numeric_places)
    if not plan.takes_plainly(tuple(chain.from_iterable(rows))):
        return None
    return _statement_for_values(plan, rows)


def _statement_for_values(
    plan: TablePlan, rows: Sequence[Row], *, may_repeat: bool = False
) -> tuple[str, Iterable[object]] | None:
    """The statement with a parameter per value, and its parameters in the order of the keys; `None`
    if only the server can rank or sort the rows.
    """
    keys = [*map(plan.key_of, rows)] if plan.mode == "update" and len(rows) > 1 else None
    if keys is not None and (may_repeat or _repeats(keys)):
        return None
    places = plan.sent_places(rows, keys)
    if places is None:
        return None
    return plan.values(len(rows)), chain.from_iterable(arrange(rows, places))


def _repeats(keys: list[object]) -> bool:
    """Whether two of the keys may be the same."""
    try:
        return len(set(keys)) < len(keys)
    except TypeError:  # a value that cannot be hashed
        return True


class _Guard:
    """Ends a statement with `TimeoutError` if its connection breaks while asyncpg waits to send.

    A broken connection does not end that wait.
    """

    __slots__ = ("_con", "_is_over", "_limit")

    def __init__(self, con: PoolConnectionProxy[Any]) -> None:
        self._con = con
        self._limit = LOOP_CLOCK.timeout_at(None)
        self._is_over = False

    def _broken(self, con: object) -> None:
        if not self._is_over:
            self._limit.reschedule(LOOP_CLOCK.now())

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._con.add_termination_listener(self._broken)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        if not is_gone(self._con):
            self._con.remove_termination_listener(self._broken)
        await self._limit.__aexit__(kind, error, trace)
