"""One write, as plain functions of a connection.

1. All rows are sent at once, in statements of as many rows as the database allows. That is one
   transaction, or a single statement that commits by itself.
2. If a row is to blame, the transaction is rolled back, and the rows are written again with savepoints:
   a part that is refused is divided until the bad row is alone. Its neighbours are stored.
3. A row whose earlier try has an unknown outcome is looked for by its key, where a conflict is an error.
4. Where the COMMIT itself is refused, as by a deferred constraint, each row has a transaction of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.causes import caused
from ..._core.classify import classified
from ..._core.errors import (
    ErrorClass,
    PermanentError,
    TransientError,
    UnknownOutcomeError,
)
from ..._core.outcome import Outcome
from .errors import classify_sql, is_lost, is_twice
from .rows import all_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from .batch import SqlBatch
    from .plan import SqlPlan
    from .rows import SqlRow

LOOKED_UP = 200
"""Keys of a query."""


class BlamedRow(Exception):  # never leaves a write
    """A row is to blame for an error, or has not told what it returns: the rows are to be written again,
    one part at a time.
    """


class SqlWriter:
    """Writes the rows of a batch."""

    def __init__(self, plan: SqlPlan, batch: SqlBatch) -> None:
        self._plan = plan
        self._batch = batch

    # -- writing -----------------------------------------------------------------------------------

    def write(self, con: Connection) -> None:
        """Write all rows. Raises `BlamedRow`, with nothing stored, if one may be to blame."""
        try:
            self._begin(con)
            rows = self._without_stored(con, self._batch.rows)
            for part in self._batch.parts(self._batch.latest(rows)):
                self._insert(con, part)
        except Exception as error:
            _roll_back(con)
            self._raise(error)
        self._commit(con)

    def write_alone(self, con: Connection) -> None:
        """Write all rows by one statement, which commits by itself. Raises as `write`."""
        rows = self._batch.latest(self._batch.rows)
        try:
            self._insert(con, rows)
        except Exception as error:
            if is_lost(error):
                raise UnknownOutcomeError(f"the connection was lost: {error}") from error
            self._raise(error)

    def write_carefully(self, con: Connection) -> None:
        """Write what can be written; rows that are refused are in the answer."""
        plan = self._plan
        try:
            self._begin(con)
            if plan.dialect.at_once is not None:
                con.exec_driver_sql(plan.dialect.at_once)
            rows = self._without_stored(con, self._batch.rows)
            for once in self._batch.once(rows):
                for part in self._batch.parts(once):
                    self._divide(con, part)
            self._batch.forget_replaced(rows)
        except Exception as error:
            _roll_back(con)
            if is_lost(error):
                raise _lost(error) from error
            raise
        self._commit(con)

    def write_singly(self, con: Connection) -> None:
        """Write each row in a transaction of its own; rows that are refused are in the answer, and so is
        an error that ends the write, for each row behind it.
        """
        rows = self._without_stored(con, self._batch.rows)
        for at, row in enumerate(rows):
            if self._batch.is_stopped(row):
                continue
            is_written = False
            try:
                self._begin(con)
                self._insert(con, [row])
                is_written = True
                con.exec_driver_sql("COMMIT")
            except Exception as error:
                _roll_back(con)
                if not _is_by_rows(error):
                    self._leave(rows[at:], error, in_doubt=is_written)
                    return
                self._blame(row, error)

    def _leave(self, rows: Sequence[SqlRow], error: Exception, *, in_doubt: bool) -> None:
        """Fail rows that an error has ended at; with `in_doubt` the first one may be stored."""
        for row in rows:
            if self._batch.is_stopped(row):
                continue
            if not is_lost(error):
                self._batch.answer.errors[row.index] = error
            elif in_doubt and row is rows[0]:
                self._batch.answer.errors[row.index] = caused(_lost_with_commit(error), error)
            else:
                self._batch.answer.errors[row.index] = caused(_lost(error), error)
            self._batch.answer.details.pop(row.index, None)

    def _insert(self, con: Connection, rows: Sequence[SqlRow]) -> None:
        """Run the statement for these rows. Raises `BlamedRow` if what it returns does not tell them."""
        plan = self._plan
        result = con.exec_driver_sql(plan.insert(len(rows)), all_values(rows))
        if plan.returned.names:
            details = plan.returned.matched(con, rows, result)
            if details is None:
                raise BlamedRow
            self._batch.answer.details.update(details)

    def _divide(self, con: Connection, rows: Sequence[SqlRow]) -> None:
        rows = [row for row in rows if not self._batch.is_stopped(row)]
        if not rows:
            return
        con.exec_driver_sql("SAVEPOINT penstock")
        try:
            self._insert(con, rows)
        except Exception as error:
            if not _is_by_rows(error):
                raise
            con.exec_driver_sql("ROLLBACK TO SAVEPOINT penstock")
            if len(rows) == 1:
                self._blame(rows[0], error)
                return
            half = len(rows) // 2
            self._divide(con, rows[:half])
            self._divide(con, rows[half:])
        else:
            con.exec_driver_sql("RELEASE SAVEPOINT penstock")

    def _blame(self, row: SqlRow, error: BaseException) -> None:
        if row.is_maybe and is_twice(error):
            self._batch.answer.outcomes[row.index] = Outcome.DUPLICATE
            return
        made = PermanentError(f"the database refuses the row ({_told(error)})")
        summary = f"the database refuses the row ({type(error).__name__})"  # without its values
        self._batch.refuse(row, caused(made, error, summary=summary))

    def _without_stored(self, con: Connection, rows: Sequence[SqlRow]) -> Sequence[SqlRow]:
        """Leave out what an earlier try of unknown outcome has stored.

        Raises `UnknownOutcomeError` where there is no key to find it by.
        """
        plan = self._plan
        maybe = [row for row in rows if row.is_maybe] if plan.target.mode == "error" else []
        if not maybe:
            return rows
        if plan.key is None:
            told = f"{plan.table} has no unique key within the columns to find rows of an earlier try by"
            raise UnknownOutcomeError(told)
        places = plan.key_places
        keys = {row.index: tuple(row.values[at] for at in places) for row in maybe}
        stored: set[int] = set()
        for at in range(0, len(maybe), LOOKED_UP):
            some = maybe[at : at + LOOKED_UP]
            wanted = tuple(value for row in some for value in keys[row.index])
            found = con.exec_driver_sql(plan.lookup(len(some)), wanted)
            there = dict(plan.returned.by_key(con, found))
            ours = {row.index: there[key] for row in some if (key := keys[row.index]) in there}
            stored |= ours.keys()
            if plan.returned.names:
                self._batch.answer.details.update(ours)
        self._batch.answer.outcomes.update(dict.fromkeys(stored, Outcome.DUPLICATE))
        return [row for row in rows if row.index not in stored]

    # -- transactions ------------------------------------------------------------------------------

    def _begin(self, con: Connection) -> None:
        con.exec_driver_sql(self._plan.dialect.begin)

    def _commit(self, con: Connection) -> None:
        try:
            con.exec_driver_sql("COMMIT")
        except Exception as error:
            if is_lost(error):
                con.invalidate()  # one that has not answered may be within the transaction still
                raise _lost_with_commit(error) from error
            _roll_back(con)
            self._raise(error)

    def _raise(self, error: Exception) -> None:
        """Raise `BlamedRow` for an error that a row may be to blame for, and others as they are."""
        if is_lost(error):
            raise _lost(error) from error
        if _is_by_rows(error):
            raise BlamedRow from error
        raise error


def _is_by_rows(error: Exception) -> bool:
    """Whether the rows of the statement may be to blame."""
    if isinstance(error, BlamedRow):
        return True
    return not is_lost(error) and classified(error, classify_sql) is ErrorClass.PERMANENT


def _lost(error: Exception) -> TransientError:
    return TransientError(f"the connection was lost before anything was kept: {error}")


def _lost_with_commit(error: Exception) -> UnknownOutcomeError:
    return UnknownOutcomeError(f"the connection was lost during the COMMIT: {error}")


def _roll_back(con: Connection) -> None:
    try:
        con.exec_driver_sql("ROLLBACK")
    except Exception:  # the connection is gone, or the database has rolled back by itself
        con.invalidate()


def _told(error: BaseException) -> str:
    original = getattr(error, "orig", None)
    return str(error if original is None else original)
