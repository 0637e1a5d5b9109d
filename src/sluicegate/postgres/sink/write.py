"""One write of one batch on one connection, by the sink itself or in one of its transactions.

1. The fast path comes first: one `INSERT` with a parameter per value below the threshold, `COPY`
   from the threshold on; with `ignore` and `update` one `INSERT` from an array per column. Each is
   its own transaction, which the server commits by itself. That saves the two round trips of
   `BEGIN` and `COMMIT`; in return, a connection that breaks after the last row was sent leaves an
   unknown outcome, which the next attempt repairs (4). Very large batches of the latter kind are
   sent by `COPY` into a staging table, which takes a few milliseconds to create. Repairs choose
   their own statements. Nothing that repairs a write exists before its first error: for rows that
   asyncpg certainly sends unchanged, the one `INSERT` is all (`plain_insert`), and what follows its
   error continues from there.
2. A bad row is named by asyncpg (which could not encode it) or by the server (`COPY events, line
   2`). It fails alone, and the remaining rows are written again, up to `MAX_HINTS` times. All rows
   that asyncpg cannot encode are found at once, without the server.
3. If no row is named, or too many were named, the remaining rows are *sifted*: staged loosely, then
   inserted row by row inside the server, each in a subtransaction. So any number of bad rows costs
   at most `MAX_HINTS` writes, one staging and one sifting, and with keys (5) a few more siftings.
4. After an unknown outcome the rows are sent through staging and `ON CONFLICT DO NOTHING`, once. A
   conflict is a `duplicate` only if the item was in the unknown attempt, and if the stored row is
   the item's (`KeyConflicts`); otherwise the item is at fault, or stays unknown.
5. In a batch with keys, the rows after a failed row of their key are left out with it, however the
   failure was found.
6. Before any row is blamed, the table is read again, once: rows that fail because of an outdated
   plan are written with the new one. A missing privilege, table or column refuses the whole write
   (`RefusedError`). An error whose code does not prove that a row is at fault is attributed to the
   table if sifting finds no row that can be stored, and to the row otherwise. If such rows come
   before the first stored one, they are sifted again, since an outage may have ended in between.
7. A lock or statement timeout while another session blocks the whole table (for example a
   migration) is an outage, and uses no attempts; a lock on single rows is transient.
8. A lost prepared statement is prepared again. That uses no attempt and is not logged. If
   statements need not be prepared, the whole write starts again instead (`StatementLost`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core.arrow import ArrowBatch
from ..._core.batch import RowBatch
from ..._core.errors import TransientError
from ..._core.sink import WriteResult
from ..._core.values.rows import RowMaker
from ..client.errors import LOCK_NOT_AVAILABLE, for_write, is_lost, is_refusal, sqlstate
from ..client.refusals import for_connecting
from ..client.statements import BEGIN
from . import changes
from .changes import steps_of
from .diagnosis import Diagnosis
from .encoding import Packing
from .growth import Growth
from .remaining import Remaining, without
from .repair import Blame, refusal_of, resend, set_aside_unfindable
from .scope import ALONE, Savepoint
from .sender import Sender, plain_insert
from .sifting import Sifting
from .strategy import Chooser

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from ..._core.batch import Batch
    from ..._core.values.rows import GivenRows, RowFunction
    from ..client.access import Access
    from .changes import Steps
    from .growth import GrowthSettings
    from .plan import TablePlan
    from .scope import Scope
    from .strategy import Target

MAX_HINTS = 3
_NO_ERROR = Exception()
_WAITED = frozenset({LOCK_NOT_AVAILABLE, "57014"})
"""A lock timeout or a statement timeout was exceeded."""


class TableWriter:
    """Converts batches to rows, and writes them on the given connection with the given plan."""

    def __init__(
        self,
        target: Target,
        access: Access,
        row: RowFunction | None,
        growth: GrowthSettings,
    ) -> None:
        self.diagnosis = Diagnosis(target, access.place)
        self.growth: Growth | None = None
        """What decides on missing columns; `None` if the table stays as it is."""
        if growth.is_active:
            reads_text = access.keeps_codecs
            self.growth = Growth(growth, target, row, self.diagnosis, reads_text=reads_text)
        self._chooser = Chooser(target.strategy, access.statement_cache)
        self._packing = Packing()
        self._maker = RowMaker(target.columns, row)
        self._changes = target.changes
        self._takes_columns = row is None

    @property
    def applies_changes(self) -> bool:
        """Whether items are changes."""
        return self._changes is not None

    def rows_of(self, batch: Batch[Any], plan: TablePlan) -> GivenRows:
        """The rows of a batch, and an error for each item that cannot become one.

        Items that are changes become rows when they are written.
        """
        if self._changes is not None:
            return (), (), {}
        return self._all_rows_of(batch, plan)

    def _all_rows_of(self, batch: Batch[Any], plan: TablePlan) -> GivenRows:
        given = self._rows_of(batch, plan)
        refused = {} if self.growth is None else self.growth.refused(batch, plan)
        return without(given, refused) if refused else given

    def _rows_of(self, batch: Batch[Any], plan: TablePlan) -> GivenRows:
        if (
            not isinstance(batch, RowBatch)
            and isinstance(batch, ArrowBatch)
            and self._takes_columns
            and plan.copies
            and plan.reads_text
            and plan.columns
        ):
            from .rows.columns import column_rows  # pyarrow is installed: it made the batch

            found = column_rows(
                batch.record_batch, [plan.table.column(name) for name in plan.columns]
            )
            if found is not None:
                return range(len(found)), found, {}
        return self._maker.rows(batch) if self.growth is None else self.growth.rows_of(batch, plan)

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
        """Write the rows of a batch; return the result, and a new plan if the table was changed.

        Raises errors of the batch as a whole. Cancellation leaves the connection busy or in a
        transaction: it must be reset.
        """
        if self._changes is not None:
            return await self._apply(con, plan, batch, steps_of(self._changes, batch, plan), scope)
        return await self._run(con, plan, batch, given, maybe=maybe, scope=scope)

    async def _apply(
        self,
        con: PoolConnectionProxy[Any],
        plan: TablePlan,
        batch: Batch[Any],
        steps: Steps,
        scope: Scope,
    ) -> tuple[WriteResult | None, TablePlan]:
        """Write a batch of changes."""
        if not steps.deletions and [names for names, _ in steps.upserts] == [plan.columns]:
            given = without(self._all_rows_of(batch, plan), steps.errors)
            return await self._run(con, plan, batch, given, maybe=frozenset(), scope=scope)
        is_sealed = False
        try:
            if not scope.is_inside:
                await con.execute(scope.opening or BEGIN)
            errors, plan = await self._change(con, plan, batch, steps)
            if not scope.is_inside:
                is_sealed = True
                await ALONE.commit(con)
        except Exception as error:
            raise for_write(error, sealed=is_sealed)  # noqa: B904  # the cause is set
        return WriteResult(len(batch), errors) if errors else None, plan

    async def _change(
        self, con: PoolConnectionProxy[Any], plan: TablePlan, batch: Batch[Any], steps: Steps
    ) -> tuple[dict[int, BaseException], TablePlan]:
        """Write the steps in the open transaction; return the errors and the new plan."""
        errors: dict[int, BaseException] = {**steps.errors}
        errors.update(await changes.delete(con, plan, batch, steps.deletions))
        for names, indices in steps.upserts:
            is_part = names != plan.columns
            left = [index for index in indices if index not in errors]
            if is_part:
                part = changes.part_of(plan, names)
                given = changes.rows_of(batch, left, part)
                left, refused = await changes.update(con, part, given)
                errors.update(refused)
                if lacking := changes.lacking(part):
                    errors.update((index, changes.no_row(lacking)) for index in left)
                    left = []
                given = changes.rows_of(batch, left, part)
                await con.execute(changes.DROP_STAGING)
            else:
                part = plan
                given = _at(self._all_rows_of(batch, plan), left)
            await con.execute(f"SAVEPOINT {changes.POINT}")
            result, written_by = await self._run(
                con, part, batch, given, maybe=frozenset(), scope=Savepoint(changes.POINT)
            )
            await con.execute(f"RELEASE SAVEPOINT {changes.POINT}")
            if is_part:
                await con.execute(changes.DROP_STAGING)
            if written_by is not part and not is_part:
                plan = written_by
            if result is not None:
                errors.update(result.errors)
        return errors, plan

    async def _run(
        self,
        con: PoolConnectionProxy[Any],
        plan: TablePlan,
        batch: Batch[Any],
        given: GivenRows,
        *,
        maybe: frozenset[int],
        scope: Scope,
    ) -> tuple[WriteResult | None, TablePlan]:
        if not maybe and not scope.opening:
            plain = self._plain_insert(plan, given)
            if plain is not None:
                try:
                    await con.execute(plain[0], *plain[1])
                except Exception as error:
                    return await self._write(
                        con, plan, batch, given, maybe=maybe, scope=scope, failed=error
                    )
                return None, plan
        return await self._write(con, plan, batch, given, maybe=maybe, scope=scope)

    def _plain_insert(
        self, plan: TablePlan, given: GivenRows
    ) -> tuple[str, Iterable[object]] | None:
        """The statement that stores all rows at once, and its parameters; `None` if the rows, or
        their number, need anything else.
        """
        _, rows, errors = given
        if errors or not isinstance(rows, (tuple, list)):
            return None
        if not rows or self._chooser.choose(plan, len(rows)) != "values":
            return None
        try:
            return plain_insert(plan, rows)
        except Exception:  # an item's own; the longer way names its row
            return None

    async def _write(
        self,
        con: PoolConnectionProxy[Any],
        plan: TablePlan,
        batch: Batch[Any],
        given: GivenRows,
        *,
        maybe: frozenset[int],
        scope: Scope,
        failed: Exception | None = None,
    ) -> tuple[WriteResult | None, TablePlan]:
        """Write rows that need more than a plain insertion, or after it `failed`."""
        remaining = Remaining(given, maybe=maybe, keys=batch.keys)
        sender = Sender(
            con,
            plan,
            remaining,
            scope,
            chooser=self._chooser,
            packing=self._packing,
            diagnosis=self.diagnosis,
        )
        try:
            await _write(sender, failed)
        except Exception as error:
            if is_refusal(error):
                raise await refusal_of(sender, error)  # noqa: B904  # the cause is set
            if sqlstate(error) in _WAITED and not scope.is_inside and await _is_locked(sender):
                raise self.diagnosis.locked(error, sender.plan)  # noqa: B904  # the cause is set
            raise
        return remaining.answer(len(batch)), sender.plan


def _at(given: GivenRows, wanted: Sequence[int]) -> GivenRows:
    """The rows of the wanted items only."""
    chosen = set(wanted)
    left = without(given, {index: _NO_ERROR for index in given[0] if index not in chosen})
    return left[0], left[1], {i: e for i, e in given[2].items() if i in chosen}


async def _write(sender: Sender, failed: Exception | None) -> None:
    """Write every row; the results are then in the `Remaining`."""
    remaining = sender.remaining
    repair: _Repair | None = None
    if failed is not None:
        sender.note_plain_insert()
        repair = _Repair(sender)
        if not await repair.sends_again(failed, by_name=True):
            return
    if remaining.stop_keys():
        remaining.keep()
    remaining.drop_unversioned(sender.plan)
    if not remaining.rows:
        return
    if sender.scope.opening:
        await _open_scope(sender)
    is_resent = bool(remaining.maybe) and sender.plan.mode != "update"
    if remaining.maybe and not is_resent:
        sender.as_tuples()
        set_aside_unfindable(sender)
    while remaining.rows:
        try:
            if not is_resent:
                await sender.send()
            elif not await resend(sender):
                await (repair or _Repair(sender)).sift()
            return
        except Exception as error:
            repair = repair or _Repair(sender)
            if not await repair.sends_again(error, by_name=not is_resent):
                return


async def _open_scope(sender: Sender) -> None:
    try:
        await sender.con.execute(sender.scope.opening)
    except Exception as error:
        told = for_write(error, sealed=False)
        if is_lost(error) and isinstance(told, TransientError):  # a pooler without a server
            told = for_connecting(error, sender.diagnosis.place)
        raise told  # noqa: B904  # the cause is set


class _Repair:
    """The repair of one write, after its first error."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._blame = Blame(sender)
        self._hints = 0

    async def sends_again(self, error: Exception, *, by_name: bool) -> bool:
        """Whether to send the remaining rows again; otherwise they were sifted.

        With `by_name`, rows that the error names are dropped first, up to `MAX_HINTS` times.
        """
        blame = self._blame
        await blame.recover(error)
        if await blame.sends_again(error):
            return True
        self._hints += 1
        if by_name and await blame.drop_named(error) and self._hints < MAX_HINTS:
            return True
        await self.sift()
        return False

    async def sift(self) -> None:
        """Write the good rows one by one and fail the others."""
        await Sifting(self._sender, self._blame).run()


async def _is_locked(sender: Sender) -> bool:
    """Whether another session's lock blocks the whole table, according to the server."""
    try:
        await sender.undo()
        await sender.begin(f"LOCK TABLE {sender.plan.table.qualified} IN ROW EXCLUSIVE MODE NOWAIT")
        await sender.undo()
    except Exception as error:  # for any other error, the original one is raised
        return sqlstate(error) == LOCK_NOT_AVAILABLE
    return False
