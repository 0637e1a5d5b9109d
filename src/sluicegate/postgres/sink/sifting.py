"""Sifting: rows are staged loosely, then inserted one by one inside the server.

1. Each row has a subtransaction, so any number of bad rows costs one staging and one sifting. With
   keys, a row may conflict with a row that is then left out after a failed row of its key. In that
   case the remaining rows are sifted again, at most once per key.
2. If an earlier attempt may have stored a row whose key is taken, it is compared with the stored
   row.
3. The loop over the rows is a `DO` block (`_insertion`). It records refused and skipped rows in a
   temporary table, the *verdict*.
"""

# ruff: noqa: S608  # text is put into statements here and nowhere else: names by `quoted`, types as the server spelled them

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.classify import caused
from ..._core.errors import SinkError
from ..._core.values.rows import KeyConflicts
from ..client.errors import (
    NO_PRIVILEGE,
    NOT_NULL,
    OF_ALL,
    OF_ALL_FAMILIES,
    for_item,
    for_write,
    is_about_items,
    is_lost,
    is_refusal,
    is_stale,
    sqlstate,
)
from ..client.names import quoted
from .diagnosis import missing_privileges
from .encoding import refused_rows, unread_rows
from .plan import LOOSE, SCHEMA, VERDICT, staging_table, temporary
from .repair import refusal_of
from .rows.values import LazyRows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncpg import Record

    from .facts import PlanFacts
    from .repair import Blame
    from .sender import Sender

_NO_PARENT = "23503"
"""A foreign key was violated."""
TAKEN = ("23505", "23P01")
"""A unique key or an exclusion was violated."""
_VERDICT_COLUMNS = (
    "(o int4, code text, message text, detail text, rule text, field text, is_unread bool)"
)
_BY_OTHER_ROWS = frozenset({"23503", "P0001", *TAKEN})
"""A foreign key, a unique key or an exclusion was violated, or a trigger raised an error."""


class Sifting:
    """Sifts the remaining rows of one write."""

    def __init__(self, sender: Sender, blame: Blame) -> None:
        self._sender = sender
        self._remaining = sender.remaining
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
            await sender.begin(_loose_tables(sender.plan, again=sender.scope.is_inside))
            await self._stage()
            if self._remaining.rows and not await self._is_settled():
                await sender.undo()
                continue
            await sender.commit()
            return

    async def _is_settled(self) -> bool:
        """Insert the staged rows; return whether the result can be committed."""
        await self._sender.con.execute(_insertion(self._sender.plan))
        refused = await self._verdict()
        if self._is_doubtful(refused):
            return False
        if self._remaining.refuse_in_order(await self._verify(refused), _by_other_rows):
            self._remaining.keep()
            return False
        return True

    async def _verify(self, refused: dict[int, Exception]) -> dict[int, Exception | None]:
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
        for row in await self._sender.con.fetch(_conflicts(plan)):
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
        verdict = await sender.con.fetch(f"SELECT * FROM {SCHEMA}.{VERDICT}")
        refused = {row["o"]: _error_of(row) for row in verdict if row["code"] is not None}
        if len(refused) == len(self._remaining.rows):
            for error in refused.values():
                if not self._blame.is_row(error) and (
                    sqlstate(error) == NOT_NULL or is_refusal(error)
                ):
                    raise await refusal_of(sender, error)
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


def _loose_tables(facts: PlanFacts, *, again: bool = False) -> str:
    """Create empty loose staging and an empty verdict in the open transaction; deferred constraints
    become immediate.
    """
    tables = [
        staging_table(LOOSE, facts.loose_types, again=again),
        temporary(VERDICT, _VERDICT_COLUMNS, again=again),
    ]
    return f"SET CONSTRAINTS ALL IMMEDIATE; {'; '.join(tables)}; SAVEPOINT sluicegate"


def _insertion(facts: PlanFacts) -> str:
    """Insert row by row, each in a subtransaction on the server, and record refused and skipped
    rows in the verdict.

    Errors that are not caused by a row end it, including a missing privilege. Row-level security,
    which has the same code, refuses individual rows. A row that refers to a later one, which a
    statement of all rows would accept, is inserted after it. Rows are inserted in the order of the
    batch, on which the results depend, so the existing rows that they replace are first locked in
    the order of the key.

    Values that were staged as text are read first: an error there is the row's own, whatever its
    code. The input of a type may raise the codes of missing tables (regclass) and of syntax
    (jsonpath).
    """
    values = ", ".join(f"{'v' if cast else 'r'}.c{place}" for place, cast in enumerate(facts.casts))
    read = ", ".join(
        f"r.c{place}{cast} AS c{place}" for place, cast in enumerate(facts.casts) if cast
    )
    read = f"is_unread = true; SELECT {read} INTO v; is_unread = false;" if read else ""
    of_all = f"SQLSTATE IN ({_texts(OF_ALL)}) OR left(SQLSTATE, 2) IN ({_texts(OF_ALL_FAMILIES)})"
    unprivileged = f"SQLSTATE = '{NO_PRIVILEGE}' AND EXISTS ({missing_privileges(facts)})"
    store = f"""{read}
            {facts.into} VALUES ({values}){facts.on_conflict};
            GET DIAGNOSTICS n = ROW_COUNT;
            IF n = 0 THEN INSERT INTO {SCHEMA}.{VERDICT} (o) VALUES (r.o); END IF"""
    body = f"""
#variable_conflict use_column
DECLARE
    r record; v record; n bigint; again boolean; is_unread boolean = false; p_message text; p_detail text; p_rule text; p_field text;
BEGIN
    {_lock(facts)}FOR r IN SELECT * FROM {SCHEMA}.{LOOSE} ORDER BY o LOOP
        BEGIN
            {store};
        EXCEPTION WHEN OTHERS THEN
            IF {of_all} THEN RAISE; END IF;
            IF {unprivileged} THEN RAISE; END IF;
            GET STACKED DIAGNOSTICS p_message = MESSAGE_TEXT, p_detail = PG_EXCEPTION_DETAIL, p_rule = CONSTRAINT_NAME,
                p_field = COLUMN_NAME;
            INSERT INTO {SCHEMA}.{VERDICT} VALUES (r.o, SQLSTATE, p_message, p_detail, p_rule, p_field, is_unread);
            is_unread = false;
        END;
    END LOOP;
    SELECT EXISTS (SELECT FROM {SCHEMA}.{LOOSE} s WHERE NOT EXISTS (SELECT FROM {SCHEMA}.{VERDICT} v WHERE v.o = s.o)
        AND s.o > (SELECT min(v.o) FROM {SCHEMA}.{VERDICT} v WHERE v.code = '{_NO_PARENT}')) INTO again;
    WHILE again LOOP
        again = false;
        FOR r IN SELECT s.* FROM {SCHEMA}.{LOOSE} s JOIN {SCHEMA}.{VERDICT} v USING (o)
            WHERE v.code = '{_NO_PARENT}'{_without_later(facts)} ORDER BY s.o LOOP
            BEGIN
                DELETE FROM {SCHEMA}.{VERDICT} v WHERE v.o = r.o;
                {store};
                again = true;
            EXCEPTION WHEN OTHERS THEN
                IF {of_all} THEN RAISE; END IF;
            END;
        END LOOP;
    END LOOP;
END
"""
    tag = _unused_tag(body)
    return f"DO {tag}{body}{tag}"


def _lock(facts: PlanFacts) -> str:
    """Lock the rows that are replaced, in the order of the key.

    Their own values are sorted: a staged value may not fit into its column.
    """
    names = facts.target or ()
    casts = dict(zip(facts.columns, facts.casts, strict=True))
    if facts.keeps_arrival or not facts.replaces or any(casts[name] for name in names):
        return ""
    pairs = zip(names, facts.staged(names), strict=True)
    same = " AND ".join(f"t.{quoted(name)} = s.{key}" for name, key in pairs)
    return (
        f"PERFORM FROM {facts.table.qualified} t JOIN {SCHEMA}.{LOOSE} s ON {same}"
        f"{facts.stored_order(None, of='t.')} FOR NO KEY UPDATE OF t;\n    "
    )


def _without_later(facts: PlanFacts) -> str:
    """A condition for rows that may be inserted after later ones: none of them has the same key."""
    if facts.mode != "update":
        return ""
    rows, keys = _keyed_rows(facts, facts.target or ())
    same = " AND ".join(
        facts.table.column(name).equal(f"e.{key}", f"k.{key}")
        for name, key in zip(facts.target or (), keys, strict=True)
    )
    return (
        f" AND NOT EXISTS (SELECT FROM {rows} k, {rows} e WHERE k.o = s.o AND e.o > k.o AND {same})"
    )


def _keyed_rows(facts: PlanFacts, key: tuple[str, ...]) -> tuple[str, list[str]]:
    """The staged rows with the values of a key in its types, NULL if they could not be read, and
    their columns.
    """
    columns, casts = (
        facts.staged(key),
        dict(zip(facts.all_staged.split(", "), facts.casts, strict=True)),
    )
    if not any(casts[column] for column in columns):
        return f"{SCHEMA}.{LOOSE}", columns
    values = ", ".join(
        f"CASE WHEN f.o IS NULL THEN l.{column}{casts[column]} END AS {column}"
        for column in columns
    )
    rows = f"{SCHEMA}.{LOOSE} l LEFT JOIN {SCHEMA}.{VERDICT} f ON f.o = l.o AND f.is_unread"
    return f"(SELECT l.o, {values} FROM {rows})", columns


def _conflicts(facts: PlanFacts) -> str:
    """Read the inserted rows (`stored`) and the rows whose key is taken, in order: the place of the
    first of them with the same key, and whether the table has a row of that key with the same
    values.

    A row whose key contains NULL has no other of its key.
    """
    given = _readable(facts)
    keys = facts.staged(facts.key or ())
    missing = " OR ".join(f"s.{key} IS NULL" for key in keys)
    of_key = ", ".join(f"s.{key}" for key in keys)
    found = " AND ".join(f"t.{quoted(name)} IS NOT NULL" for name in facts.key or ())
    return (
        f"SELECT s.o, s.stored, CASE WHEN {missing} THEN s.o ELSE min(s.o) OVER (PARTITION BY "
        f"{of_key}) END AS first, {found} AS found, {facts.same_values} AS same "
        f"FROM {given} s LEFT JOIN {facts.table.qualified} t ON {facts.same_key} ORDER BY s.o"
    )


def _readable(facts: PlanFacts) -> str:
    """The inserted rows and those whose key is taken, with their values in the columns' types.

    Only such rows can be cast to these. `OFFSET` prevents that the server casts others, before it
    applies the condition.
    """
    values = ", ".join(
        f"l.{staged}::{facts.table.column(name).exact} AS {staged}"
        for name, staged in zip(facts.columns, facts.staged(facts.columns), strict=True)
    )
    return (
        f"(SELECT l.o, v.o IS NULL AS stored, {values} FROM {SCHEMA}.{LOOSE} l LEFT JOIN "
        f"{SCHEMA}.{VERDICT} v USING (o) WHERE v.o IS NULL OR v.code IN ({_texts(TAKEN)}) OFFSET 0)"
    )


def _texts(values: tuple[str, ...]) -> str:
    return ", ".join(f"'{value}'" for value in values)


def _unused_tag(body: str) -> str:
    number = 0
    while f"$p{number}$" in body:
        number += 1
    return f"$p{number}$"
