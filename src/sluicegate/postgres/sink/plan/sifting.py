"""The statements of sifting: rows inserted one by one inside the server."""

# ruff: noqa: S608  # text is put into statements here and nowhere else: names by `quoted`, types as the server spelled them

from __future__ import annotations

from typing import TYPE_CHECKING

from ...client.errors import NO_PRIVILEGE, OF_ALL, OF_ALL_FAMILIES
from ...client.names import quoted
from .rights import lacking
from .temporary import LOOSE, RETURNED, SCHEMA, VERDICT, staging_table, temporary

if TYPE_CHECKING:
    from .facts import PlanFacts

_NO_PARENT = "23503"
"""A foreign key was violated."""
TAKEN = ("23505", "23P01")
"""A unique key or an exclusion was violated."""
_VERDICT_COLUMNS = (
    "(o int4, code text, message text, detail text, rule text, field text, is_unread bool)"
)


def sifting(facts: PlanFacts, *, again: bool = False) -> str:
    """Create empty loose staging and an empty verdict in the open transaction; deferred constraints
    become immediate.
    """
    tables = [
        staging_table(LOOSE, facts.loose_types, again=again),
        temporary(VERDICT, _VERDICT_COLUMNS, again=again),
    ]
    if facts.returning:
        query = (
            f"AS SELECT 0::int4 AS o, {facts.values_of()} FROM {facts.table.qualified} WITH NO DATA"
        )
        tables.append(temporary(RETURNED, query=query, again=again))
    return f"SET CONSTRAINTS ALL IMMEDIATE; {'; '.join(tables)}; SAVEPOINT sluicegate"


def sift(facts: PlanFacts) -> str:
    """Insert row by row, each in a subtransaction on the server, and record refused and skipped
    rows in the verdict.

    Errors that are not caused by a row end it, including a missing privilege. Row-level security,
    which has the same code, refuses single rows. A row that refers to a later one, which a statement
    of all rows would accept, is inserted after it. Rows are inserted in the order of the batch, on
    which the results depend, so the existing rows that they replace are first locked in the order of
    the key.

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
    unprivileged = f"SQLSTATE = '{NO_PRIVILEGE}' AND EXISTS ({lacking(facts)})"
    insert = f"{facts.into} VALUES ({values}){facts.on_conflict}"
    if facts.returning:
        stored = f"{insert} RETURNING r.o AS o, {facts.values_of()}"
        insert = f"WITH stored AS ({stored}) INSERT INTO {SCHEMA}.{RETURNED} SELECT * FROM stored"
    store = f"""{read}
            {insert};
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
    rows, keys = _keyed(facts, facts.target or ())
    same = " AND ".join(
        facts.table.column(name).equal(f"e.{key}", f"k.{key}")
        for name, key in zip(facts.target or (), keys, strict=True)
    )
    return (
        f" AND NOT EXISTS (SELECT FROM {rows} k, {rows} e WHERE k.o = s.o AND e.o > k.o AND {same})"
    )


def _keyed(facts: PlanFacts, key: tuple[str, ...]) -> tuple[str, list[str]]:
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


def conflicts(facts: PlanFacts) -> str:
    """Read the inserted rows (`stored`) and the rows whose key is taken, in order: the place of the
    first of them with the same key, and whether the table has a row of that key with the same
    values.

    A row whose key contains NULL has no other of its key.
    """
    given = readable(facts, facts.columns, f"v.o IS NULL OR v.code IN ({_texts(TAKEN)})")
    keys = facts.staged(facts.key or ())
    missing = " OR ".join(f"s.{key} IS NULL" for key in keys)
    of_key = ", ".join(f"s.{key}" for key in keys)
    found = " AND ".join(f"t.{quoted(name)} IS NOT NULL" for name in facts.key or ())
    return (
        f"SELECT s.o, s.stored, CASE WHEN {missing} THEN s.o ELSE min(s.o) OVER (PARTITION BY "
        f"{of_key}) END AS first, {found} AS found, {facts.same_values} AS same "
        f"FROM {given} s LEFT JOIN {facts.table.qualified} t ON {facts.same_key} ORDER BY s.o"
    )


def readable(facts: PlanFacts, names: tuple[str, ...], condition: str = "") -> str:
    """The sifted rows that fulfil a condition, with the values of these columns in their types;
    without a condition those that the table may contain, also from an earlier attempt.

    Only such rows can be cast to the columns' types. `OFFSET` prevents that the server casts
    others, before it applies the condition.
    """
    values = ", ".join(
        f"l.{staged}::{facts.table.column(name).exact} AS {staged}"
        for name, staged in zip(names, facts.staged(names), strict=True)
    )
    condition = condition or f"v.code IS NULL OR v.code IN ({_texts(TAKEN)})"
    return (
        f"(SELECT l.o, v.o IS NULL AS stored, {values} FROM {SCHEMA}.{LOOSE} l LEFT JOIN "
        f"{SCHEMA}.{VERDICT} v USING (o) WHERE {condition} OFFSET 0)"
    )


def _texts(values: tuple[str, ...]) -> str:
    return ", ".join(f"'{value}'" for value in values)


def _unused_tag(body: str) -> str:
    number = 0
    while f"$p{number}$" in body:
        number += 1
    return f"$p{number}$"
