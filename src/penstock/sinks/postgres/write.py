"""One write of one batch on one connection.

1. The quick ways come first: pipelined `INSERT`s below the threshold; from there on `COPY`, or with
   `ignore` and `update` or where rows are returned one `INSERT` from an array per column. Each is a
   transaction of its own, which the server ends by itself. That saves the two round trips of
   `BEGIN` and `COMMIT`; in return a connection that breaks after the last row was handed over
   leaves the outcome unknown, which the next try repairs (4). Very large ones of the latter go by
   `COPY` into a staging table, whose making costs some milliseconds. A statement that was asked for
   is used instead, at any size; the repairs below keep their own.
2. A row that is to blame is named by asyncpg (the row it could not encode) or by the server (`COPY
   events, line 2`). It fails alone and the rest is written again, up to `MAX_HINTS` times. All rows
   that asyncpg cannot encode are found at once, without the server.
3. Where nobody names a row, or too many were named, the rest is *sifted*: staged loosely, then
   inserted row by row inside the server, each in a subtransaction. So any number of bad rows costs
   at most `MAX_HINTS` writes, one staging and one sifting.
4. After an unknown outcome the rows go through staging and `ON CONFLICT DO NOTHING`, once. A
   conflict is a `duplicate` only where the item was in the unknown try; elsewhere it is the item's
   own fault.
5. Where the batch has keys, the rows behind a failed one of their key are left out with it, in
   whatever way it was found.
6. Before any row is blamed, the table is read again, once: rows that fail by an outdated plan are
   written by the new one. A right that is missing, a table or a column that is gone refuse the
   write as a whole (`RefusedError`). An error whose code does not say that a row is at fault is one
   of the table if sifting finds no row that goes in, and of single rows otherwise. Where such rows
   come before the first that goes in, they are sifted again: an outage may have ended in between.
7. A limit on waiting that is exceeded while another session keeps every row out of the table (a
   migration, say) is an outage, and uses up no attempts; a lock on single rows is transient.
8. A prepared statement that is gone is prepared again. That uses up nothing, and is not told.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..._clients.postgres.errors import (
    LOCK_NOT_AVAILABLE,
    NO_PRIVILEGE,
    NOT_NULL,
    blames_row,
    copy_row,
    for_write,
    is_about_items,
    is_from_server,
    is_gone,
    is_lost,
    is_refusal,
    is_stale,
    sqlstate,
)
from ..._core.errors import RefusedError, SinkError, UnknownOutcomeError
from ..._core.result import WriteResult
from .encoding import refused_rows
from .refusals import asked_again, locked
from .rows import LazyRows
from .send import STAGED_FROM, Sending
from .sql import EXACT, LOOSE

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from asyncpg import Record

    from .strategy import Ways

MAX_HINTS = 3
_BAD_BINARY = "22P03"
_WAITED = frozenset({LOCK_NOT_AVAILABLE, "57014"})
"""A limit on waiting for a lock, or on a statement as a whole, was exceeded."""
_NO_COPY = frozenset({"0A000", "42809"})
"""Row-level security applies to the role, or the table is a view."""


class Write(Sending):
    """The rows of one batch on their way."""

    async def run(self, ways: Ways) -> None:
        """Write every row, by the way that their number asks for; afterwards `errors` and
        `outcomes` answer for those that were not simply delivered, and `details` holds what was
        returned.

        Raises what fails the batch as a whole. Cancellation leaves the connection busy or in a
        transaction: it must be reset.
        """
        try:
            await self._run(ways)
        except Exception as error:
            if is_refusal(error):
                raise await self._refusal(error)  # noqa: B904  # it has its cause
            if sqlstate(error) in _WAITED and not self._scope.is_inside and await self._is_locked():
                raise locked(error, self._plan, self._judge.place)  # noqa: B904  # it has its cause
            raise

    async def _run(self, ways: Ways) -> None:
        if self._stop_keys():
            self._keep()
        resend = bool(self._maybe) and self._plan.mode != "update"
        hints = 0
        while self._rows:
            try:
                await self._be_current(ways)
                return await (self._resend() if resend else self._quickly(ways))
            except Exception as error:
                await self._recover(error)
                if await self._goes_otherwise(error):
                    continue
                hints += 1
                named = not resend and await self._drop_named(error)
            if not named or hints == MAX_HINTS:
                return await self._guarded_sift()
        return None

    # -- after an unknown outcome ------------------------------------------------------------------

    def _set_aside_unfindable(self) -> None:
        """What cannot be found again must not be written again: a key that holds NULL, or no key at
        all.
        """
        places = self._plan.key_places
        if not places:
            raise UnknownOutcomeError(
                f"an earlier try may have stored these rows, and {self._plan.table.qualified} "
                "has no unique key among the columns "
                f"{', '.join(self._plan.columns)}, so that sending them again could store them "
                "twice; add a unique index over columns "
                "that this sink writes"
            )
        lost = [
            place
            for place, index in enumerate(self._indices)
            if index in self._maybe and any(self._rows[place][key] is None for key in places)
        ]
        message = (
            "an earlier try may have stored this row, and its key holds NULL, so that it "
            "cannot be found again"
        )
        self._drop({place: UnknownOutcomeError(message) for place in lost})

    async def _resend(self) -> None:
        self._as_rows()
        self._set_aside_unfindable()
        if not self._rows:
            return None
        await self._begin(self._plan.staging(again=self._scope.is_inside))
        await self._stage(EXACT)
        skipped = await self._con.fetch(self._plan.resend)
        conflicts = [row for row in skipped if self._is_conflict(row["o"], again=row["again"])]
        # rows that are at fault without an earlier try: sifting finds the server's own
        # error for each
        if conflicts:
            await self._scope.undo(self._con)
            return await self._guarded_sift()
        self._note_duplicates([row["o"] for row in skipped])
        await self._find(EXACT, {row["o"] for row in skipped})
        return await self._commit()

    def _is_conflict(self, place: int, *, again: bool) -> bool:
        return self._plan.mode == "error" and (again or self._indices[place] not in self._maybe)

    async def _find(self, staging: str, skipped: Container[int]) -> None:
        """Read the rows that the server would have returned: those that went in now, and those that
        an earlier try had stored.
        """
        if self._plan.returning:
            found = await self._con.fetch(self._plan.found(staging))
            ours = [
                row
                for row in found
                if row["o"] not in skipped or self._indices[row["o"]] in self.outcomes
            ]
            self._note_returned(self._plan.returning, ours)

    # -- finding who is to blame -------------------------------------------------------------------

    async def _recover(self, error: Exception) -> None:
        """Make the connection ready for another statement; raise errors after which there is none,
        or that no row causes.
        """
        if isinstance(error, UnknownOutcomeError):
            raise error
        if (
            is_lost(error)
            or is_gone(self._con)
            or (self._sealed and not is_from_server(error) and is_stale(error))
        ):
            raise for_write(error, sealed=self._sealed)  # it has its cause
        await self._undo()
        if not (is_stale(error) or is_about_items(error)):
            raise for_write(error, sealed=False)

    async def _goes_otherwise(self, error: Exception) -> bool:
        """Whether the same rows are written again, since the error lay with how they were sent."""
        if is_stale(error):
            await self._prepare_again(error)
            return True
        if (
            isinstance(self._rows, LazyRows) and sqlstate(error) == _BAD_BINARY
        ):  # our encoding is at fault, and no row
            self._as_rows()
            return True
        table = self._plan.table
        if (
            table.takes_copy
            and self._copying == table.name
            and sqlstate(error) in _NO_COPY
            and is_from_server(error)
        ):
            self._plan = replace(self._plan, table=replace(table, takes_copy=False))
            return True
        return await self._was_changed(error)

    async def _prepare_again(self, error: Exception) -> None:
        """Forget the prepared statements and types of the connection; raise where that has not
        helped.

        A pooler may give each transaction another session. So rows whose statement is gone twice
        are written by a transaction that prepares nothing.
        """
        self._stale += 1
        if self._stale > STAGED_FROM:
            raise await self._refusal(error)
        await self._con.reload_schema_state()

    async def _was_changed(self, error: Exception) -> bool:
        """Read the table again, once, before any row is blamed; say whether it is another one than
        the plan was made for.
        """
        if self._is_read_again:
            return False
        self._is_read_again = True
        try:
            plan = await self._judge.read_again(self._con, self._plan, error)
            lacks = sqlstate(error) == NO_PRIVILEGE and await self._judge.missing(
                self._con, plan, again=bool(self._maybe)
            )
        except Exception as second:
            if isinstance(second, RefusedError) or is_lost(second):
                raise for_write(second, sealed=False)  # noqa: B904  # it has its cause
            raise await self._refusal(error) from second
        if lacks:
            raise await self._refusal(error)
        if plan == self._plan:
            return False
        self._go_by(plan)
        await self._con.reload_schema_state()
        return True

    async def _drop_named(self, error: Exception) -> bool:
        if not is_from_server(error):
            refused = await asked_again(
                self._con, partial(refused_rows, self._con, self._plan, self._rows)
            )
            if not refused:
                raise error
            self._drop(refused)
            return True
        is_named = self._copying is not None and self._blames_row(error)
        line = copy_row(error, self._copying or "", len(self._rows)) if is_named else None
        if line is not None:
            self._drop({self._line(line): error})
        return line is not None

    # -- sifting -----------------------------------------------------------------------------------

    async def _guarded_sift(self) -> None:
        if (
            isinstance(self._rows, LazyRows) and self._plan.stages_types
        ):  # a value that no tuple holds goes in with the others
            self._drop(self._rows.refused())
        else:
            self._as_rows()
        if not self._rows:
            return
        try:
            await self._sift()
        except SinkError:
            raise
        except Exception as error:
            if self._stale or not is_stale(error):
                raise for_write(error, sealed=self._sealed)  # noqa: B904  # it has its cause
            await self._undo()
            await self._prepare_again(error)
            await self._guarded_sift()

    async def _sift(self) -> None:
        while self._rows:
            await self._begin(self._plan.sifting(again=self._scope.is_inside))
            await self._stage_loosely()
            if self._rows:
                await self._con.execute(self._plan.sift)
                refused = await self._verdict()
                if self._is_doubtful(refused):
                    await self._undo()
                    continue
                for place, (error, again) in refused.items():
                    self._refuse(self._indices[place], error, again=again)
                if self._stop_keys():  # rows have gone in behind a failed one of their key
                    await self._undo()
                    self._keep()
                    continue
                await self._note_sifted()
            await self._commit()
            return

    async def _verdict(self) -> dict[int, tuple[Exception, bool]]:
        """The error of each refused row, by its place. Raises `RefusedError` where all rows are
        refused by errors that no row causes.
        """
        verdict = await self._con.fetch(self._plan.verdict)
        refused: dict[int, tuple[Exception, bool]] = {
            row["o"]: (_server_error(row), row["again"])
            for row in verdict
            if row["code"] is not None
        }
        if len(refused) == len(self._rows):
            for error, _ in refused.values():
                if not self._blames_row(error) and (
                    sqlstate(error) == NOT_NULL or is_refusal(error)
                ):
                    raise await self._refusal(error)
        self._note_duplicates([row["o"] for row in verdict if row["code"] is None])
        return refused

    def _is_doubtful(self, refused: Mapping[int, tuple[Exception, bool]]) -> bool:
        """Whether an outage may have ended between the first refused row and the first that went
        in; asked once.

        None can have begun behind that one, which holds a lock on every table that it has touched.
        """
        if self._is_sifted_again:
            return False
        first = next((place for place in range(len(self._rows)) if place not in refused), 0)
        self._is_sifted_again = any(
            place < first and not self._blames_row(error) for place, (error, _) in refused.items()
        )
        return self._is_sifted_again

    def _blames_row(self, error: Exception) -> bool:
        return blames_row(
            sqlstate(error) or "", getattr(error, "column_name", None), self._plan.columns
        )

    async def _note_sifted(self) -> None:
        if not self._plan.returning:
            return
        if self.outcomes:
            await self._find(LOOSE, range(len(self._rows)))
        self._note_returned(self._plan.returning, await self._con.fetch(self._plan.returned))

    async def _stage_loosely(self) -> None:
        while self._rows:
            try:
                return await self._stage(LOOSE)
            except Exception as error:
                if is_lost(error) or not is_about_items(error):
                    raise
                await self._con.execute("ROLLBACK TO SAVEPOINT penstock")
                self._as_rows()
                if not await self._drop_named(error):
                    refused = await refused_rows(self._con, self._plan, self._rows)
                    if not refused:
                        raise
                    self._drop(refused)
        return None

    async def _is_locked(self) -> bool:
        """Whether another session holds a lock that keeps every row out of the table. Asks the
        server.
        """
        try:
            await self._undo()
            await self._con.execute(
                f"BEGIN; LOCK TABLE {self._plan.table.qualified} IN ROW EXCLUSIVE MODE NOWAIT; "
                "ROLLBACK"
            )
        except Exception as error:  # any other error leaves the one that is raised
            return sqlstate(error) == LOCK_NOT_AVAILABLE
        return False

    async def _refusal(self, error: Exception) -> RefusedError:
        """`error` as a refusal of every write; nothing was stored. Asks the server, on this
        connection.
        """
        if not is_gone(self._con):
            await self._undo()
        return await self._judge.refusal(self._con, self._plan, error, again=bool(self._maybe))


def _server_error(row: Record) -> Exception:
    """The server's error as asyncpg would have raised it."""
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


def answer(batch: Sequence[object], write: Write) -> WriteResult | None:
    """The write's answer; `None` if every item was delivered."""
    if not write.errors and not write.outcomes and not write.details:
        return None
    return WriteResult(len(batch), write.errors, write.outcomes, write.details)
