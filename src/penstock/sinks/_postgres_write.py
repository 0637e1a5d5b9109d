"""One write of one batch on one connection.

1. The quick ways come first: pipelined `INSERT`s below the threshold; from there on `COPY`, or with `ignore` and `update` or where rows
   are returned one `INSERT` from an array per column. Each is a transaction of its own, which the server ends by itself. That saves the
   two round trips of `BEGIN` and `COMMIT`; in return a connection that breaks after the last row was handed over leaves the outcome
   unknown, which the next try repairs (4). Very large ones of the latter go by `COPY` into a staging table, whose making costs some
   milliseconds. A statement that was asked for is used instead, at any size; the repairs below keep their own.
2. A row that is to blame is named by asyncpg (the row it could not encode) or by the server (`COPY events, line 2`). It fails alone and
   the rest is written again, up to `MAX_HINTS` times. All rows that asyncpg cannot encode are found at once, without the server.
3. Where nobody names a row, or too many were named, the rest is *sifted*: staged loosely, then inserted row by row inside the server, each
   in a subtransaction. So any number of bad rows costs at most `MAX_HINTS` writes, one staging and one sifting.
4. After an unknown outcome the rows go through staging and `ON CONFLICT DO NOTHING`, once. A conflict is a `duplicate` only where the
   item was in the unknown try; elsewhere it is the item's own fault.
5. Where the batch has keys, the rows behind a failed one of their key are left out with it, in whatever way it was found.
6. *Sealed* means: the server has been told to keep the rows. A connection lost before that is transient, one lost after it is unknown.
   A write within a larger transaction (`Scope`) is never sealed: only that transaction's commit keeps its rows.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from .._core.errors import UnknownOutcomeError
from .._core.key_order import stopped_behind
from .._core.outcome import Outcome
from .._core.result import WriteResult
from ._postgres_encoding import refused_rows, staged_columns
from ._postgres_errors import copy_row, for_item, for_write, is_about_items, is_from_server, is_gone, is_lost, sqlstate
from ._postgres_guard import Guard
from ._postgres_rows import LazyRows
from ._postgres_scope import ALONE
from ._postgres_sql import EXACT, LOOSE, SCHEMA

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Mapping, Sequence

    from asyncpg import Record
    from asyncpg.pool import PoolConnectionProxy

    from ._postgres_rows import Row
    from ._postgres_scope import Scope
    from ._postgres_sql import Plan
    from ._postgres_ways import Ways

MAX_HINTS = 3
SENT_AT_ONCE = 1 << 18
"""Bytes of columns that are handed to the connection in one piece."""
_UNIQUE_VIOLATION = "23505"
_BAD_BINARY = "22P03"


class Write:
    """The rows of one batch on their way; `indices` are the batch's, `rows` lie beside them."""

    def __init__(
        self,
        con: PoolConnectionProxy[Any],
        plan: Plan,
        *,
        indices: Sequence[int],
        rows: Sequence[Row],
        errors: dict[int, Exception],
        maybe: frozenset[int],
        keys: Sequence[object] | None = None,
        scope: Scope = ALONE,
    ) -> None:
        self._con = con
        self._scope = scope
        self._plan = plan
        self._indices = indices
        self._rows = rows
        self._maybe = maybe
        self._keys = keys
        self.errors = errors
        self.outcomes: dict[int, Outcome] = {}
        self.details: dict[int, dict[str, Any]] = {}
        self._copying: str | None = None
        self._line: Callable[[int], int] = int
        """From a line of what is copied to its row's place."""
        self._explicit = scope.is_inside
        self._sealed = False

    async def run(self, ways: Ways) -> None:
        """Write every row, by the way that their number asks for; afterwards `errors` and `outcomes` answer for those that were not simply delivered,
        and `details` holds what was returned.

        Raises what fails the batch as a whole. Cancellation leaves the connection busy or in a transaction: it must be reset.
        """
        if self._stop_keys():
            self._keep()
        resend = bool(self._maybe) and self._plan.mode != "update"
        if resend:
            self._set_aside_unfindable()
        hints = 0
        while self._rows:
            try:
                return await (self._resend() if resend else self._quickly(ways))
            except Exception as error:
                await self._recover(error)
                if isinstance(self._rows, LazyRows) and sqlstate(error) == _BAD_BINARY:  # our encoding is at fault, and no row
                    self._rows = list(self._rows)
                    continue
                hints += 1
                named = not resend and await self._drop_named(error)
            if not named or hints == MAX_HINTS:
                return await self._guarded_sift()
        return None

    # -- the quick ways -----------------------------------------------------------------------------------------------

    async def _quickly(self, ways: Ways) -> None:
        plan = self._plan
        if isinstance(self._rows, LazyRows) and not plan.returning and await self._copy_columns(self._rows):
            return None
        way = ways.choose(plan, len(self._rows))
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

    async def _insert_rows(self) -> None:
        if not self._plan.returning:
            return await self._insert(self._plan.insert, self._rows)
        self._copying = None
        async with Guard(self._con):
            rows = [(*row, place) for place, row in enumerate(self._rows)]
            found = await self._con.fetchmany(self._plan.insert, self._feed(rows))
        return self._note_returned(found)

    async def _merge(self, statement: str, *arguments: object) -> None:
        if not self._plan.returning:
            await self._con.execute(statement, *arguments)
            return
        found = await self._con.fetch(statement, *arguments)
        if self._plan.mode != "error":
            self._note_returned(found)
        elif len(found) == len(self._rows):  # else a trigger has kept rows out, and nobody knows which
            self._note_returned(found, range(len(found)))

    def _note_returned(self, found: Sequence[Record], places: Iterable[int] | None = None) -> None:
        names = self._plan.returning
        for place, row in zip((row["o"] for row in found) if places is None else places, found, strict=True):
            self.details[self._indices[place]] = {name: row[f"v{number}"] for number, name in enumerate(names)}

    async def _insert(self, statement: str, rows: Sequence[Row]) -> None:
        self._copying = None
        async with Guard(self._con):
            await self._con.executemany(statement, self._feed(rows))

    async def _copy(self, table: str, schema: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        self._copying, self._line = table, int
        async with Guard(self._con):
            await self._con.copy_records_to_table(table, records=self._feed(rows), columns=columns, schema_name=schema)

    async def _copy_columns(self, rows: LazyRows) -> bool:
        """Send columns as they are; say whether they could be."""
        plan = self._plan
        staged = plan.mode != "error"
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

    async def _copy_binary(self, table: str, schema: str, columns: Sequence[str], data: memoryview) -> None:
        self._copying = table

        async def source() -> AsyncIterator[Any]:
            for start in range(0, len(data), SENT_AT_ONCE):
                yield data[start : start + SENT_AT_ONCE]
            if not self._explicit:
                self._sealed = True

        async with Guard(self._con):
            await self._con.copy_to_table(table, source=source(), columns=columns, schema_name=schema, format="binary")

    async def _stage(self, table: str) -> None:
        rows = [(place, *row) for place, row in enumerate(self._rows)]
        if not self._plan.copies:
            return await self._insert(self._plan.stage(table), rows)
        return await self._copy(table, SCHEMA, staged_columns(self._plan), rows)

    def _feed(self, rows: Sequence[Row]) -> Iterator[Row]:
        """The rows for one statement. asyncpg sends the statement's end as soon as it has taken the last one."""
        return chain(rows, self._end_of_rows())

    def _end_of_rows(self) -> Iterator[Row]:
        if not self._explicit:
            self._sealed = True
        yield from ()

    # -- after an unknown outcome -------------------------------------------------------------------------------------

    def _set_aside_unfindable(self) -> None:
        """What cannot be found again must not be written again: a key that holds NULL, or no key at all."""
        places = self._plan.key_places
        if not places:
            raise UnknownOutcomeError(
                f"an earlier try may have stored these rows, and {self._plan.table.qualified} has no unique key among the columns "
                f"{', '.join(self._plan.columns)}, so that sending them again could store them twice; add a unique index over columns "
                "that this sink writes"
            )
        lost = [
            place
            for place, index in enumerate(self._indices)
            if index in self._maybe and any(self._rows[place][key] is None for key in places)
        ]
        message = "an earlier try may have stored this row, and its key holds NULL, so that it cannot be found again"
        self._drop({place: UnknownOutcomeError(message) for place in lost})

    async def _resend(self) -> None:
        await self._begin(self._plan.staging(again=self._scope.is_inside))
        await self._stage(EXACT)
        skipped = await self._con.fetch(self._plan.resend)
        conflicts = [row for row in skipped if self._is_conflict(row["o"], again=row["again"])]
        if conflicts:  # rows that are at fault without an earlier try: sifting finds the server's own error for each
            await self._scope.undo(self._con)
            return await self._guarded_sift()
        self._note_duplicates([row["o"] for row in skipped])
        await self._find(EXACT, {row["o"] for row in skipped})
        return await self._commit()

    def _is_conflict(self, place: int, *, again: bool) -> bool:
        return self._plan.mode == "error" and (again or self._indices[place] not in self._maybe)

    def _note_duplicates(self, places: Sequence[int]) -> None:
        for place in places:
            index = self._indices[place]
            if index in self._maybe:
                self.outcomes[index] = Outcome.DUPLICATE

    async def _find(self, staging: str, skipped: Container[int]) -> None:
        """Read the rows that the server would have returned: those that went in now, and those that an earlier try had stored."""
        if self._plan.returning:
            found = await self._con.fetch(self._plan.found(staging))
            ours = [row for row in found if row["o"] not in skipped or self._indices[row["o"]] in self.outcomes]
            self._note_returned(ours)

    # -- finding who is to blame --------------------------------------------------------------------------------------

    async def _recover(self, error: Exception) -> None:
        """Make the connection ready for another statement; raise what is no item's fault."""
        if isinstance(error, UnknownOutcomeError):
            raise error
        if is_lost(error) or is_gone(self._con) or not is_about_items(error):
            raise for_write(error, sealed=self._sealed)  # it has its cause
        await self._undo()

    async def _drop_named(self, error: Exception) -> bool:
        if not is_from_server(error):
            refused = await refused_rows(self._con, self._plan, self._rows)
            if not refused:
                raise error
            self._drop(refused)
            return True
        line = None if self._copying is None else copy_row(error, self._copying, len(self._rows))
        if line is not None:
            self._drop({self._line(line): error})
        return line is not None

    def _drop(self, refused: Mapping[int, Exception]) -> None:
        if not refused:
            return
        for place, error in refused.items():
            self._refuse(self._indices[place], error)
        self._stop_keys()
        self._keep(refused)

    def _stop_keys(self) -> bool:
        """Fail what stands behind a failed item of its key; say whether there was any that had not failed itself."""
        stopped = stopped_behind(self._keys, self.errors, self.outcomes)
        is_new = not stopped.keys() <= self.errors.keys()
        self.errors.update(stopped)
        return is_new

    def _keep(self, without: Container[int] = ()) -> None:
        """Go on with the rows of the items that have not failed, and not with those at the places `without`."""
        kept = [place for place, index in enumerate(self._indices) if place not in without and index not in self.errors]
        self._indices = [self._indices[place] for place in kept]
        self._rows = self._rows.kept(kept) if isinstance(self._rows, LazyRows) else [self._rows[place] for place in kept]

    def _refuse(self, index: int, error: Exception, *, again: bool = False) -> None:
        if isinstance(error, UnknownOutcomeError):
            self.errors[index] = error
        elif index in self._maybe and getattr(error, "sqlstate", None) == _UNIQUE_VIOLATION and not again:
            self.outcomes[index] = Outcome.DUPLICATE
        else:
            self.errors[index] = for_item(error)

    # -- sifting ------------------------------------------------------------------------------------------------------

    async def _guarded_sift(self) -> None:
        if not self._rows:
            return
        try:
            await self._sift()
        except UnknownOutcomeError:
            raise
        except Exception as error:
            raise for_write(error, sealed=self._sealed)  # noqa: B904  # it has its cause

    async def _sift(self) -> None:
        while self._rows:
            await self._begin(self._plan.sifting(again=self._scope.is_inside))
            await self._stage_loosely()
            if self._rows:
                await self._con.execute(self._plan.sift)
                self._note_verdict(await self._con.fetch(self._plan.verdict))
                if self._stop_keys():  # rows have gone in behind a failed one of their key
                    await self._undo()
                    self._keep()
                    continue
                await self._note_sifted()
            await self._commit()
            return

    def _note_verdict(self, verdict: Sequence[Record]) -> None:
        self._note_duplicates([row["o"] for row in verdict if row["code"] is None])
        for row in verdict:
            if row["code"] is not None:
                place: int = row["o"]
                self._refuse(self._indices[place], _server_error(row), again=row["again"])

    async def _note_sifted(self) -> None:
        if not self._plan.returning:
            return
        if self.outcomes:
            await self._find(LOOSE, range(len(self._rows)))
        self._note_returned(await self._con.fetch(self._plan.returned))

    async def _stage_loosely(self) -> None:
        while self._rows:
            try:
                return await self._stage(LOOSE)
            except Exception as error:
                if is_lost(error) or not is_about_items(error):
                    raise
                await self._con.execute("ROLLBACK TO SAVEPOINT penstock")
                if not await self._drop_named(error):
                    refused = await refused_rows(self._con, self._plan, self._rows)
                    if not refused:
                        raise
                    self._drop(refused)
        return None

    # -- transactions -------------------------------------------------------------------------------------------------

    async def _begin(self, script: str) -> None:
        self._explicit, self._sealed = True, False
        await self._scope.begin(self._con, script)

    async def _undo(self) -> None:
        await self._scope.undo(self._con)
        self._explicit, self._sealed = self._scope.is_inside, False

    async def _commit(self) -> None:
        self._sealed = not self._scope.is_inside
        await self._scope.commit(self._con)


def _server_error(row: Record) -> Exception:
    """The server's error as asyncpg would have raised it."""
    from asyncpg import PostgresError  # an optional dependency

    fields = {"S": "ERROR", "C": row["code"], "M": row["message"], "D": row["detail"], "n": row["rule"]}
    return PostgresError.new({name: value for name, value in fields.items() if value})


def answer(batch: Sequence[object], write: Write) -> WriteResult | None:
    """The write's answer; `None` if every item was delivered."""
    if not write.errors and not write.outcomes and not write.details:
        return None
    return WriteResult(len(batch), write.errors, write.outcomes, write.details)
