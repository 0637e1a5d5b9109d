"""The statements of one opened sink, as text.

1. Every name from outside is quoted. Staging tables have names and columns of our own (`o` is the
   row's place, `c0`, `c1`, ... its values), so no name of the user's can clash with them.
2. *Exact* staging has the target's types, so that its keys compare as the target's do. *Loose*
   staging has base types without lengths, and text for what only the server can read (JSON, XML,
   enums), so that it takes nearly every row and the blame falls later, row by row.
3. Several rows of one key in one batch: the last one counts (with a version column: the last one of
   the highest version).
4. `RETURNING` sees the table's row only, and skipped rows return nothing. So each returned row
   (`v0`, `v1`, ...) has to be led back to its place: one row by parameters returns its place as a
   parameter; many rows return their key, which is compared with the given ones as the table's type
   compares them; without conflicts every row returns, in order.
"""

# ruff: noqa: S608  # text is put into statements here and nowhere else: names by `quoted`, types as the server spelled them

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..._clients.postgres.errors import NO_PRIVILEGE, OF_ALL, OF_ALL_FAMILIES
from .rights import lacking
from .table import quoted

if TYPE_CHECKING:
    from .table import Table

EXACT = "penstock_exact"
LOOSE = "penstock_loose"
VERDICT = "penstock_verdict"
RETURNED = "penstock_returned"
SCHEMA = "pg_temp"
_CUTTING = frozenset({"smallint", "integer", "bigint", "date", "real"})
VERDICT_COLUMNS = "(o int4, code text, message text, detail text, rule text, field text)"


@dataclass(frozen=True)
class Plan:
    """What the sink does with its table: everything that the statements depend on, checked and
    complete.
    """

    table: Table
    columns: tuple[str, ...]
    mode: str
    """`error`, `ignore` or `update`."""
    target: tuple[str, ...] | None
    """The columns that `ON CONFLICT` names; `None` for any unique key."""
    key: tuple[str, ...] | None
    """The unique key by which a row is found again after an unknown outcome."""
    update_columns: tuple[str, ...]
    version: str | None
    reads_text: bool
    """Whether JSON, XML and enums are given as text, which a codec of the user's may change."""
    copies: bool = True
    """Whether asyncpg can `COPY` every column's type, which a text codec of the user's may
    prevent.
    """
    returning: tuple[str, ...] = ()
    """The columns of the stored row that its item's receipt shows."""

    @property
    def key_places(self) -> tuple[int, ...]:
        """Where the key's values stand in a row."""
        return tuple(self.columns.index(name) for name in self.key or ())

    @cached_property
    def numeric_places(self) -> tuple[int, ...]:
        """Where the values of numeric columns stand in a row; none where a codec of the user's may
        encode them.
        """
        kinds = [self.table.column(name).loose for name in self.columns]
        return tuple(
            place
            for place, kind in enumerate(kinds)
            if self.reads_text and kind in {"numeric", "numeric[]"}
        )

    @cached_property
    def cutting_places(self) -> dict[int, str]:
        """The places of columns for which asyncpg cuts what is given: digits for an integer or a
        real, a time of day for a date; their types.
        """
        kinds = [self.table.column(name).loose for name in self.columns]
        return {place: kind for place, kind in enumerate(kinds) if kind in _CUTTING}

    @cached_property
    def insert(self) -> str:
        """One row by parameters, with the mode's conflict clause; where rows are returned, its
        place is one parameter more.
        """
        values = ", ".join(f"${place}" for place in range(1, len(self.columns) + 1))
        back = (
            f" RETURNING ${len(self.columns) + 1}::int4 AS o, {self._values()}"
            if self.returning
            else ""
        )
        return f"{self._into} VALUES ({values}){self._on_conflict}{back}"

    def stage(self, name: str) -> str:
        """One row into a staging table by parameters, where `COPY` is not to be had."""
        values = ", ".join(f"${place}" for place in range(1, len(self.columns) + 2))
        return f"INSERT INTO {SCHEMA}.{name} VALUES ({values})"

    def staging(self, *, again: bool = False) -> str:
        """Empty exact staging, for the transaction that is open; `again`: it may be there from an
        earlier write.
        """
        types = [self.table.column(name).exact for name in self.columns]
        return _create(EXACT, types, again=again)

    @cached_property
    def merge(self) -> str:
        """From exact staging into the table, with the mode's conflict clause."""
        return self._merge_from(f"{SCHEMA}.{EXACT}")

    @cached_property
    def merge_distinct(self) -> str:
        """The same where no two of the rows have one key."""
        return self._plainly(f"{SCHEMA}.{EXACT}")

    @cached_property
    def merge_arrays(self) -> str | None:
        """The same from an array per column; `None` where `unnest` would take the values themselves
        apart.

        The arrays have base types: a cast to a shorter type would cut the values silently, where
        the insertion refuses them.
        """
        found = [self.table.column(name) for name in self.columns]
        if any(column.is_nested for column in found):
            return None
        arrays = ", ".join(f"${place}::{column.loose}[]" for place, column in enumerate(found, 1))
        return self._merge_from(
            f"unnest({arrays}) WITH ORDINALITY AS given({self._all}, o)", first=1
        )

    def _merge_from(self, source: str, *, first: int = 0) -> str:
        if not self.returning:
            return self._merged(source)
        if self.mode == "error":
            return f"{self._merged(source)} RETURNING {self._values()}"
        target = self.target or ()
        keys = [
            f"{key}::{self.table.column(name).exact}"
            for key, name in zip(self._staged(target), target, strict=True)
        ]
        numbered = (
            "SELECT o, "
            f"{', '.join(f'{key} AS k{place}' for place, key in enumerate(keys))}, "
            f"{self._rank(keys)} AS r FROM given"
        )
        same = " AND ".join(f"d.k{place} = n.k{place}" for place in range(len(keys)))
        stored = ", ".join(f"{quoted(name)} AS k{place}" for place, name in enumerate(target))
        return (
            f"WITH given AS MATERIALIZED (SELECT * FROM {source}), d AS "
            f"({self._merged('given')} RETURNING {stored}, {self._values()}),"
            f" n AS ({numbered}) SELECT n.o - {first} AS o, {self._values('d', own=True)} FROM "
            f"d JOIN n ON {same} WHERE n.r = 1"
        )

    def _merged(self, source: str) -> str:
        if self.mode != "update":
            return self._plainly(source)
        keys = self._staged(self.target or ())
        ranked = f"SELECT *, {self._rank(keys)} AS r FROM {source}"
        wanted = " OR ".join(["r = 1", *(f"{key} IS NULL" for key in keys)])
        return (
            f"{self._into} SELECT {self._all} FROM ({ranked}) AS ranked WHERE {wanted} "
            f"ORDER BY o{self._on_conflict}"
        )

    def _plainly(self, source: str) -> str:
        return f"{self._into} SELECT {self._all} FROM {source} ORDER BY o{self._on_conflict}"

    def _rank(self, keys: list[str]) -> str:
        """1 for the row of its key that goes into the table: the first one, or the last one where
        it replaces.
        """
        order = "o"
        if self.mode == "update":
            order = (
                "o DESC"
                if self.version is None
                else f"{self._staged((self.version,))[0]} DESC NULLS LAST, o DESC"
            )
        return f"row_number() OVER (PARTITION BY {', '.join(keys)} ORDER BY {order})"

    def found(self, staging: str) -> str:
        """The table's rows that have the keys of a staging table's."""
        same = " AND ".join(
            f"t.{quoted(name)} = s.{key}::{self.table.column(name).exact}"
            for name, key in zip(self.key or (), self._staged(self.key or ()), strict=True)
        )
        return (
            f"SELECT s.o, {self._values('t')} FROM {SCHEMA}.{staging} s JOIN "
            f"{self.table.qualified} t ON {same}"
        )

    @property
    def returned(self) -> str:
        """What `sift` stored."""
        return f"SELECT * FROM {SCHEMA}.{RETURNED}"

    def moved(self, source: str, order: str | None) -> str:
        """From a table of the same columns into the table, with the mode's conflict clause, in the
        order of a column if one is named.
        """
        names = ", ".join(map(quoted, self.columns))
        ordered = "" if order is None else f" ORDER BY {quoted(order)}"
        return f"{self._into} SELECT {names} FROM {source}{ordered}{self._on_conflict}"

    @cached_property
    def resend(self) -> str:
        """From exact staging into the table, skipping every conflict; answers the skipped rows:
        `o`, and whether a row before it has its key.
        """
        names = ", ".join(map(quoted, self.key or ()))
        keys = self._staged(self.key or ())
        given = ", ".join(f"k{place}" for place in range(len(keys)))
        whole = " AND ".join(f"{key} IS NOT NULL" for key in keys)
        same = " AND ".join(f"d.k{place} = s.{key}" for place, key in enumerate(keys))
        only = self._target if self.mode == "ignore" else ""
        return (
            f"WITH d({given}) AS ({self._into} SELECT {self._all} FROM {SCHEMA}.{EXACT} ORDER "
            f"BY o ON CONFLICT{only} DO NOTHING"
            f" RETURNING {names}), s AS (SELECT o, {', '.join(keys)}, row_number() OVER "
            f"(PARTITION BY {', '.join(keys)} ORDER BY o) AS r"
            f" FROM {SCHEMA}.{EXACT} WHERE {whole})"
            f" SELECT s.o, s.r > 1 AS again FROM s LEFT JOIN d ON {same} WHERE d.k0 IS NULL OR "
            "s.r > 1"
        )

    def sifting(self, *, again: bool = False) -> str:
        """Empty loose staging and an empty verdict, for the transaction that is open; deferred
        constraints answer at once.
        """
        tables = [
            _create(LOOSE, self._loose, again=again),
            _temporary(VERDICT, VERDICT_COLUMNS, again=again),
        ]
        if self.returning:
            query = (
                f"AS SELECT 0::int4 AS o, {self._values()} FROM {self.table.qualified} WITH NO DATA"
            )
            tables.append(_temporary(RETURNED, query=query, again=again))
        return f"SET CONSTRAINTS ALL IMMEDIATE; {'; '.join(tables)}; SAVEPOINT penstock"

    @cached_property
    def sift(self) -> str:
        """Insert row by row, each in a subtransaction on the server, and note in the verdict what
        was refused or skipped.

        Errors that no row causes end it, a missing right included; row-level security, which has
        the same code, refuses single rows.
        """
        values = ", ".join(f"r.c{place}{cast}" for place, cast in enumerate(self._casts))
        of_all = (
            f"SQLSTATE IN ({_texts(OF_ALL)}) OR left(SQLSTATE, 2) IN ({_texts(OF_ALL_FAMILIES)})"
        )
        unprivileged = f"SQLSTATE = '{NO_PRIVILEGE}' AND EXISTS ({lacking(self)})"
        insert = f"{self._into} VALUES ({values}){self._on_conflict}"
        if self.returning:
            stored = f"{insert} RETURNING r.o AS o, {self._values()}"
            insert = (
                f"WITH stored AS ({stored}) INSERT INTO {SCHEMA}.{RETURNED} SELECT * FROM stored"
            )
        body = f"""
#variable_conflict use_column
DECLARE
    r record; n bigint; p_message text; p_detail text; p_rule text; p_field text;
BEGIN
    FOR r IN SELECT * FROM {SCHEMA}.{LOOSE} ORDER BY o LOOP
        BEGIN
            {insert};
            GET DIAGNOSTICS n = ROW_COUNT;
            IF n = 0 THEN INSERT INTO {SCHEMA}.{VERDICT} (o) VALUES (r.o); END IF;
        EXCEPTION WHEN OTHERS THEN
            IF {of_all} THEN RAISE; END IF;
            IF {unprivileged} THEN RAISE; END IF;
            GET STACKED DIAGNOSTICS p_message = MESSAGE_TEXT, p_detail = PG_EXCEPTION_DETAIL, p_rule = CONSTRAINT_NAME,
                p_field = COLUMN_NAME;
            INSERT INTO {SCHEMA}.{VERDICT} VALUES (r.o, SQLSTATE, p_message, p_detail, p_rule, p_field);
        END;
    END LOOP;
END
"""
        tag = _unused_tag(body)
        return f"DO {tag}{body}{tag}"

    @cached_property
    def verdict(self) -> str:
        """What `sift` noted, and whether a row before it with the same key went in."""
        again = "false"
        if self.key is not None:
            same = " AND ".join(f"e.{key} = s.{key}" for key in self._staged(self.key))
            again = (
                f"v.code IS NOT NULL AND EXISTS (SELECT FROM {SCHEMA}.{LOOSE} e WHERE e.o < "
                f"s.o AND {same}"
                f" AND NOT EXISTS (SELECT FROM {SCHEMA}.{VERDICT} f WHERE f.o = e.o))"
            )
        return (
            f"SELECT v.*, {again} AS again FROM {SCHEMA}.{VERDICT} v JOIN {SCHEMA}.{LOOSE} "
            "s USING (o)"
        )

    @cached_property
    def encode(self) -> str:
        """Takes a row and one value more; never sent with values (see `refused_rows`)."""
        types = [*(self.table.column(name).exact for name in self.columns), "int4"]
        return "SELECT " + ", ".join(f"${place}::{kind}" for place, kind in enumerate(types, 1))

    @property
    def _into(self) -> str:
        return (
            f"INSERT INTO {self.table.qualified} AS penstock_row "
            f"({', '.join(map(quoted, self.columns))})"
        )

    @property
    def _all(self) -> str:
        return ", ".join(self._staged(self.columns))

    @property
    def stages_types(self) -> bool:
        """Whether loose staging has the types of the table's columns, and none as text."""
        return not any(self._casts)

    @property
    def _loose(self) -> list[str]:
        return [
            "text" if cast else self.table.column(name).loose
            for name, cast in zip(self.columns, self._casts, strict=True)
        ]

    @property
    def _casts(self) -> list[str]:
        found = (self.table.column(name) for name in self.columns)
        return [
            f"::{column.exact}" if self.reads_text and (column.is_read or column.is_enum) else ""
            for column in found
        ]

    def _values(self, table: str = "", *, own: bool = False) -> str:
        """The returned columns under names of our own; with `own` they have them already."""
        path = f"{table}." if table else ""
        return ", ".join(
            f"{path}v{place}" if own else f"{path}{quoted(name)} AS v{place}"
            for place, name in enumerate(self.returning)
        )

    @property
    def _target(self) -> str:
        return "" if self.target is None else f" ({', '.join(map(quoted, self.target))})"

    @property
    def _on_conflict(self) -> str:
        if self.mode == "error":
            return ""
        if self.mode == "ignore" or not self.update_columns:
            return f" ON CONFLICT{self._target} DO NOTHING"
        changes = ", ".join(
            f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in self.update_columns
        )
        newer = ""
        if self.version is not None:
            version = quoted(self.version)
            newer = (
                f" WHERE penstock_row.{version} IS NULL OR penstock_row.{version} < "
                f"EXCLUDED.{version}"
            )
        return f" ON CONFLICT{self._target} DO UPDATE SET {changes}{newer}"

    def _staged(self, names: tuple[str, ...]) -> list[str]:
        return [f"c{self.columns.index(name)}" for name in names]


def _create(name: str, types: list[str], *, again: bool) -> str:
    columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(types))
    return _temporary(name, f"(o int4, {columns})", again=again)


def _temporary(name: str, columns: str = "", *, query: str = "", again: bool) -> str:
    """An empty table until the transaction ends. Made once: each one dropped before that would keep
    its locks as well.
    """
    made = f"{name}{columns} ON COMMIT DROP {query}"
    return (
        f"CREATE TEMP TABLE IF NOT EXISTS {made}; TRUNCATE {SCHEMA}.{name}"
        if again
        else f"CREATE TEMP TABLE {made}"
    )


def _texts(values: tuple[str, ...]) -> str:
    return ", ".join(f"'{value}'" for value in values)


def _unused_tag(body: str) -> str:
    number = 0
    while f"$p{number}$" in body:
        number += 1
    return f"$p{number}$"
