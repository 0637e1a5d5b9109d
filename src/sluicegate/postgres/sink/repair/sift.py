"""Sifting: rows are staged loosely, then inserted one by one inside the server.

Each row has a subtransaction, so any number of bad rows costs one staging and one sifting. With
keys, a row may conflict with a row that is then left out after a failed row of its key. In that
case the remaining rows are sifted again, at most once per key.

If an earlier attempt may have stored a row whose key is taken, it is compared with the stored row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._core.classify import caused
from ...._core.errors import SinkError
from ...._core.values.rows import KeyConflicts
from ...client.errors import (
    NOT_NULL,
    for_item,
    for_write,
    is_about_items,
    is_lost,
    is_refusal,
    is_stale,
    sqlstate,
)
from ..plan.sifting import TAKEN
from ..plan.temporary import LOOSE
from ..rows.lazy import LazyRows
from ..writing.encodable import refused_rows, unread_rows
from .resend import note_stored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncpg import Record

    from ..writing.sender import Sender
    from .blame import Blame
    from .judge import Judge

_BY_OTHER_ROWS = frozenset({"23503", "P0001", *TAKEN})
"""A foreign key, a unique key or an exclusion was violated, or a trigger raised an error."""


class Sifting:
    """Sifts the remaining rows of one write."""

    def __init__(self, sender: Sender, judge: Judge, blame: Blame) -> None:
        self._sender = sender
        self._remaining = sender.remaining
        self._judge = judge
        self._blame = blame
        self._is_repeated = False

    async def run(self) -> None:
        """Write the good rows and fail the bad ones. Raises errors that are not caused by a row."""
        if isinstance(self._remaining.rows, LazyRows) and self._sender.plan.stages_types:
            self._remaining.drop_refused()  # values without a Python object are staged as well
        else:
            self._sender.as_tuples()
        if not self._remaining.rows:
            return
        try:
            await self._sift()
        except SinkError:
            raise
        except Exception as error:
            if self._sender.lost_statements or not is_stale(error):
                raise for_write(error, sealed=self._sender.sealed)  # noqa: B904  # the cause is set
            await self._sender.undo()
            await self._blame.prepare_again(error)
            await self.run()

    async def _sift(self) -> None:
        sender = self._sender
        while self._remaining.rows:
            await sender.begin(sender.plan.sifting(again=sender.scope.is_inside))
            await self._stage()
            if self._remaining.rows and not await self._is_settled():
                await sender.undo()
                continue
            await sender.commit()
            return

    async def _is_settled(self) -> bool:
        """Insert the staged rows; return whether the result can be committed."""
        await self._sender.con.execute(self._sender.plan.sift)
        refused = await self._verdict()
        if self._is_doubtful(refused):
            return False
        if self._remaining.refuse_in_order(await self._verified(refused), _by_other_rows):
            self._remaining.keep()
            return False
        await self._note_returned()
        return True

    async def _verified(self, refused: dict[int, Exception]) -> dict[int, Exception | None]:
        """The errors of refused rows; `None` for a row that an earlier attempt has stored."""
        remaining, plan = self._remaining, self._sender.plan
        verified: dict[int, Exception | None] = {**refused}
        doubtful = {
            place
            for place, error in refused.items()
            if sqlstate(error) in TAKEN and remaining.indices[place] in remaining.maybe
        }
        if not doubtful:
            return verified
        conflicts = KeyConflicts(plan.table.qualified, plan.key or ())
        may_repeat = plan.mode != "error"
        for row in await self._sender.con.fetch(plan.conflicts):
            place = row["o"]
            key = place if may_repeat else row["first"]
            if place in doubtful:
                told = conflicts.verdict(key if row["found"] else None, is_same=row["same"])
                verified[place] = told and caused(told, refused[place])
            elif row["stored"]:
                conflicts.note_stored(key)
        return verified

    async def _verdict(self) -> dict[int, Exception]:
        """The error of each refused row, by its place.

        Raises `RefusedError` if all rows are refused by errors that are not caused by a row.
        """
        sender = self._sender
        verdict = await sender.con.fetch(sender.plan.verdict)
        refused = {row["o"]: _error_of(row) for row in verdict if row["code"] is not None}
        if len(refused) == len(self._remaining.rows):
            for error in refused.values():
                if not self._blame.is_row(error) and (
                    sqlstate(error) == NOT_NULL or is_refusal(error)
                ):
                    raise await self._judge.refuses(sender, error)
        self._remaining.note_duplicates([row["o"] for row in verdict if row["code"] is None])
        return refused

    def _is_doubtful(self, refused: Mapping[int, Exception]) -> bool:
        """Whether an outage may have ended between the first refused row and the first stored one.

        Returns `True` at most once. No outage can have begun after the stored row, which holds a
        lock on every table that it touched.
        """
        if self._is_repeated:
            return False
        rows = len(self._remaining.rows)
        first = next((place for place in range(rows) if place not in refused), 0)
        self._is_repeated = any(
            place < first and not self._blame.is_row(error) for place, error in refused.items()
        )
        return self._is_repeated

    async def _note_returned(self) -> None:
        plan = self._sender.plan
        if not plan.returning:
            return
        if self._remaining.outcomes:
            await note_stored(self._sender, LOOSE, range(len(self._remaining.rows)))
        self._remaining.note_returned(plan.returning, await self._sender.con.fetch(plan.returned))

    async def _stage(self) -> None:
        """Stage the rows loosely; fail those that cannot be staged."""
        sender = self._sender
        while self._remaining.rows:
            try:
                return await sender.stage(LOOSE)
            except Exception as error:
                if is_lost(error) or not is_about_items(error):
                    raise
                await sender.con.execute("ROLLBACK TO SAVEPOINT sluicegate")
                sender.as_tuples()
                if not await self._blame.drop_named(error):
                    refused = await self._refused_rows()
                    if not refused:
                        raise
                    self._remaining.drop(refused)
        return None

    async def _refused_rows(self) -> dict[int, Exception]:
        """The error of each row that cannot be staged, by its place."""
        sender, rows = self._sender, self._remaining.rows
        refused = await refused_rows(sender.con, sender.plan, rows)
        if refused or sender.plan.copies:
            return refused
        return await unread_rows(sender.con, sender.plan, rows)


def _by_other_rows(error: Exception) -> bool:
    """Whether the error may depend on the other inserted rows."""
    return sqlstate(error.__cause__ or error) in _BY_OTHER_ROWS


def _error_of(row: Record) -> Exception:
    """The server's error; that of the item if the server could not read one of its values."""
    error = _server_error(row)
    return for_item(error) if row["is_unread"] else error


def _server_error(row: Record) -> Exception:
    """The server's error, as asyncpg would have raised it."""
    from asyncpg import PostgresError  # an optional dependency

    fields = {
        "S": "ERROR",
        "C": row["code"],
        "M": row["message"],
        "D": row["detail"],
        "n": row["rule"],
        "c": row["field"],
    }
    return PostgresError.new({name: value for name, value in fields.items() if value})
