"""One write, as plain functions of a connection.

1. All rows are sent at once, in statements with as many rows as the database allows. That is one
   transaction, or a single statement that commits by itself.
2. If a row is at fault, the transaction is rolled back, and the rows are written again with
   savepoints: a refused part is halved until the bad row is alone. The other rows are stored.
3. If a conflict is an error, a row whose earlier attempt has an unknown outcome is looked up by its
   key, and compared with the stored row: see `KeyConflicts`.
4. If the COMMIT itself is refused, by a deferred constraint, no row is blamed alone.

Stored rows that have the keys of the rows of a write, compared by the database's own types.

The rows are inserted into a temporary table with the types of the table's columns, and joined with
the table by its key. So a value is rounded, padded or converted as in the table, and keys are equal
if the database takes them for equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .._core.classify import caused, classified
from .._core.errors import (
    ErrorClass,
    PermanentError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    UnverifiableError,
)
from .._core.outcome import Outcome
from .._core.values.rows import NULL_KEY, KeyConflicts
from .errors import classify_sql, for_connecting, is_lost, is_timeout, is_twice
from .rows import all_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from .batch import SqlBatch
    from .plan import SqlPlan
    from .rows import SqlRow


# -- stored rows -----------------------------------------------------------------------------------


class StoredRow(NamedTuple):
    """The stored row of a key."""

    key: tuple[Any, ...]
    """As the database returns it."""
    is_same: bool
    """Whether the written columns have the same values."""


_NO_ROW = StoredRow((), is_same=False)


class BlamedRow(Exception):  # never raised out of a write
    """A row may be at fault for an error: the rows are to be written again part by part."""


class SqlWriter:
    """Writes the rows of a batch."""

    def __init__(self, plan: SqlPlan, batch: SqlBatch) -> None:
        self._plan = plan
        self._batch = batch
        self._conflicts = KeyConflicts(plan.table, plan.key or ())
        self._fresh: list[SqlRow] = []
        """Rows that this write has stored, and whose keys are not in the conflicts yet."""

    # -- writing -----------------------------------------------------------------------------------

    def write(self, con: Connection) -> None:
        """Write all rows. Raises `BlamedRow`, with nothing stored, if a row may be at fault."""
        try:
            self._begin(con)
            for part in self._batch.parts(self._without_stored(con, self._batch.arranged)):
                self._insert(con, part)
        except Exception as error:
            _roll_back(con)
            self._raise(error)
        self._commit(con)

    def write_alone(self, con: Connection) -> None:
        """Write all rows with one statement, which commits by itself. Raises the same errors as
        `write`.
        """
        try:
            self._insert(con, self._batch.arranged)
        except Exception as error:
            if is_lost(error) and not _is_by_rows(error):
                raise UnknownOutcomeError(f"the connection was lost: {error}") from error
            self._raise(error)

    def write_carefully(self, con: Connection) -> None:
        """Write every acceptable row; refused rows are in the answer. Raises `PermanentError` if the
        COMMIT is refused.
        """
        try:
            self._begin(con)
            for part in self._batch.parts(self._without_stored(con, self._batch.rows)):
                self._divide(con, part)
        except Exception as error:
            _roll_back(con)
            if is_lost(error):
                raise _outage(error) from error
            raise
        try:
            self._commit(con)
        except BlamedRow as blamed:
            raise _refusal("the COMMIT", blamed.__cause__ or blamed) from blamed

    def _insert(self, con: Connection, rows: Sequence[SqlRow]) -> None:
        """Run the statement for these rows."""
        con.exec_driver_sql(self._plan.insert(len(rows)), all_values(rows))

    def _divide(self, con: Connection, rows: Sequence[SqlRow]) -> None:
        rows = [row for row in rows if not self._batch.is_stopped(row)]
        if not rows:
            return
        con.exec_driver_sql("SAVEPOINT sluicegate")
        try:
            self._insert(con, rows)
        except Exception as error:
            if not _is_by_rows(error):
                raise
            con.exec_driver_sql("ROLLBACK TO SAVEPOINT sluicegate")
            if len(rows) == 1:
                self._blame(con, rows[0], error)
                return
            half = len(rows) // 2
            self._divide(con, rows[:half])
            self._divide(con, rows[half:])
        else:
            con.exec_driver_sql("RELEASE SAVEPOINT sluicegate")
            self._fresh += rows

    def _blame(self, con: Connection, row: SqlRow, error: BaseException) -> None:
        if row.is_maybe and is_twice(error):
            self._verify_refused(con, row, error)
            return
        self._batch.refuse(row, _refusal("the row", error))

    def _without_stored(self, con: Connection, rows: Sequence[SqlRow]) -> Sequence[SqlRow]:
        """Leave out rows whose earlier attempt has an unknown outcome and whose key is taken.

        Raises `UnverifiableError` if there is no key to find them.
        """
        plan = self._plan
        maybe = [row for row in rows if row.is_maybe] if plan.target.mode == "error" else []
        if not maybe:
            return rows
        self._check_key()
        found = stored_rows(con, plan, self._batch, maybe)
        kept: list[SqlRow] = []
        for row in rows:
            if (stored := found.get(row.index)) is not None:
                self._settle_conflict(row, stored)  # perhaps behind a failed row of its key
            elif self._batch.is_stopped(row):
                continue
            elif row.is_maybe and None in [row.values[at] for at in plan.key_places]:
                self._batch.refuse(row, UnverifiableError(NULL_KEY))
            else:
                kept.append(row)
        return kept

    def _verify_refused(self, con: Connection, row: SqlRow, error: BaseException) -> None:
        """Settle a row that an earlier attempt may have stored, and whose key is taken now."""
        self._check_key()
        fresh = self._fresh if self._plan.target.mode == "error" else []
        rows, self._fresh = [*fresh, row], []
        found = stored_rows(con, self._plan, self._batch, rows)
        for each in rows[:-1]:
            if (stored := found.get(each.index)) is not None:
                self._conflicts.note_stored(stored.key)
        self._settle_conflict(row, found.get(row.index, _NO_ROW), error)

    def _settle_conflict(
        self, row: SqlRow, stored: StoredRow, cause: BaseException | None = None
    ) -> None:
        plan = self._plan
        conflicts = self._conflicts
        if plan.target.mode != "error":  # a conflict with another row than that of its key
            conflicts = KeyConflicts(plan.table, plan.key or ())
        error = conflicts.verdict(stored.key or None, is_same=stored.is_same)
        if error is not None:
            if not self._batch.is_stopped(row):
                self._batch.refuse(row, error if cause is None else caused(error, cause))
            return
        self._batch.answer.outcomes[row.index] = Outcome.DUPLICATE

    def _check_key(self) -> None:
        plan = self._plan
        if plan.key is None:
            raise UnverifiableError(
                f"an earlier attempt may have stored these rows, and {plan.table} has no unique "
                f"key among the columns {', '.join(plan.target.columns)}, so that sending them "
                "again could store them twice; add a unique index over columns that this sink "
                "writes"
            )

    # -- transactions ------------------------------------------------------------------------------

    def _begin(self, con: Connection) -> None:
        try:
            con.exec_driver_sql(self._plan.dialect.begin)
        except Exception as error:
            raise for_connecting(error)  # noqa: B904  # it has its cause

    def _commit(self, con: Connection) -> None:
        try:
            con.exec_driver_sql("COMMIT")
        except Exception as error:
            if is_lost(error):
                con.invalidate()  # without a response it may still be in the transaction
                raise _unknown_commit(error) from error
            _roll_back(con)
            self._raise(error)

    def _raise(self, error: Exception) -> None:
        """Raise `BlamedRow` for an error that a row may have caused, and others unchanged."""
        if _is_by_rows(error):
            raise BlamedRow from error
        if is_lost(error):
            raise _outage(error) from error
        raise error


def _is_by_rows(error: Exception) -> bool:
    """Whether the rows of the statement may be at fault."""
    return not is_lost(error) and classified(error, classify_sql) is ErrorClass.PERMANENT


def _outage(error: Exception) -> TransientError:
    """An outage that one row may cause; a timeout is transient, since the server is available."""
    text = f"the connection was lost before anything was stored: {error}"
    if is_timeout(error):
        return TransientError(text)
    return UnavailableError(text, perhaps_of_item=True)


def _unknown_commit(error: Exception) -> UnknownOutcomeError:
    return UnknownOutcomeError(f"the connection was lost during the COMMIT: {error}")


def _roll_back(con: Connection) -> None:
    try:
        con.exec_driver_sql("ROLLBACK")
    except Exception:  # the connection is gone, or the database has rolled back by itself
        con.invalidate()


def _refusal(what: str, error: BaseException) -> PermanentError:
    original = getattr(error, "orig", None)
    made = PermanentError(f"the database refuses {what} ({original or error})")
    summary = f"the database refuses {what} ({type(error).__name__})"  # without its values
    return caused(made, error, summary=summary)


def stored_rows(
    con: Connection, plan: SqlPlan, batch: SqlBatch, rows: Sequence[SqlRow]
) -> dict[int, StoredRow]:
    """The stored row of each row's key, by the row's index; in an open transaction.

    Raises `UnverifiableError` if the database does not allow a temporary table.
    """
    try:
        con.exec_driver_sql(plan.dialect.drop_temporary)
        con.exec_driver_sql(plan.compared_table)
    except Exception as error:
        kind = classified(error, classify_sql)
        if is_lost(error) or kind not in {ErrorClass.PERMANENT, ErrorClass.REFUSED}:
            raise
        raise UnverifiableError(
            f"an earlier attempt may have stored rows in {plan.table}, and they cannot be compared: "
            f"the database allows no temporary table ({type(error).__name__}); grant the right to "
            "create one"
        ) from error
    for part in batch.parts(rows, more=1):
        _insert(con, plan, part)
    width = len(plan.quoted)
    found = con.exec_driver_sql(plan.compare).fetchall()
    con.exec_driver_sql(plan.dialect.drop_temporary)
    return dict(_compare(plan, width, found))


def _compare(
    plan: SqlPlan, width: int, found: Sequence[Sequence[Any]]
) -> Iterator[tuple[int, StoredRow]]:
    for values in found:
        given, stored = values[1 : 1 + width], values[1 + width :]
        is_same = all(map(_are_equal, given, stored))
        yield values[0], StoredRow(tuple(stored[at] for at in plan.key_places), is_same)


def _are_equal(given: object, stored: object) -> bool:
    """Whether two values that the driver has read are the same; NaN is the same as NaN."""
    return bool(given == stored) or repr(given) == repr(stored)


def _insert(con: Connection, plan: SqlPlan, rows: Sequence[SqlRow]) -> None:
    """Insert rows to compare; leave out those whose values the database refuses."""
    con.exec_driver_sql("SAVEPOINT sluicegate_compared")
    values = tuple([value for row in rows for value in (row.index, *row.values)])
    try:
        con.exec_driver_sql(plan.insert_compared(len(rows)), values)
    except Exception as error:
        if is_lost(error) or classified(error, classify_sql) is not ErrorClass.PERMANENT:
            raise
        con.exec_driver_sql("ROLLBACK TO SAVEPOINT sluicegate_compared")
        half = len(rows) // 2
        for part in (rows[:half], rows[half:]) if half else ():
            _insert(con, plan, part)
