"""The properties of an open table: its columns, its unique keys, its statements.

1. The table is read with SQLAlchemy's reflection, when opening and again before a row is blamed.
2. A column that requires a value and gets none would make every row fail, so it is an error when
   opening.
3. The statement for each number of rows is built once; at most `MOST_STATEMENTS` are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._core.checks import bad
from .dialects import TEMPORARY
from .order import SqlOrder, order_of
from .values import checked_json, sql_rule_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, Table
    from sqlalchemy.types import TypeEngine

    from .._core.values.rows import RowTarget
    from .dialects import SqlDialect, SqlLimits
    from .values import Processor, SqlValueRule

MOST_STATEMENTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlPlan:
    """The plan for writing rows into one table."""

    target: RowTarget
    dialect: SqlDialect
    limits: SqlLimits
    key: tuple[str, ...] | None
    """A unique key within the columns, used to find conflicts."""
    processors: Mapping[int, Processor]
    """Functions that convert a value for the driver, by its place in a row."""
    rules: Mapping[int, SqlValueRule]
    """Checks of values, by their place in a row."""
    orders: Mapping[int, SqlOrder]
    """The order of values, by their place in a row, of columns that can be sorted here."""
    keeps_arrival: bool
    """Whether rows are written in the order of the batch: a conflict is an error, there is one
    writer at a time, or a column that is not written is numbered by the database.
    """
    description: Sequence[tuple[Any, ...]]
    """The columns as the database describes them."""
    doubt: str | None
    """The reason why the session would silently change values."""
    table: str
    """The quoted name."""
    quoted: tuple[str, ...]
    placeholder: str
    """A parameter."""
    clause: str
    _statements: dict[int, str] = field(default_factory=dict[int, str])

    @property
    def most_rows(self) -> int:
        """The maximum number of rows in a statement, limited by its parameters."""
        return max(1, self.limits.parameters // len(self.quoted))

    @property
    def key_places(self) -> tuple[int, ...]:
        """The places of the key's columns in a row."""
        columns = self.target.columns
        return tuple(columns.index(each) for each in self.key or ())

    @property
    def version_place(self) -> int | None:
        """The place of the version in a row."""
        version = self.target.version
        return None if version is None else self.target.columns.index(version)

    def insert(self, count: int) -> str:
        """The statement for this number of rows."""
        found = self._statements.get(count)
        if found is None:
            if len(self._statements) >= MOST_STATEMENTS:
                self._statements.clear()
            found = self._statements[count] = self._build(count)
        return found

    def _build(self, count: int) -> str:
        rows = _parameters(self.placeholder, len(self.quoted), count)
        return (
            f"{self.dialect.insert} INTO {self.table} ({', '.join(self.quoted)}) "  # names are quoted
            f"VALUES {rows}{self.clause}"
        )

    @property
    def compared_table(self) -> str:
        """Create the temporary table of rows to compare: the place `o`, and values of the columns'
        types, which may be NULL.
        """
        columns = ", ".join(f"t.{name} AS c{at}" for at, name in enumerate(self.quoted))
        return self.dialect.temporary(
            f"SELECT n.o, {columns} FROM (SELECT 0 AS o) n LEFT JOIN {self.table} t ON 1 = 0 "  # noqa: S608  # names are quoted
            "WHERE n.o = 1"
        )

    def insert_compared(self, count: int) -> str:
        """Insert this number of rows to compare, each with its place."""
        rows = _parameters(self.placeholder, 1 + len(self.quoted), count)
        return f"INSERT INTO {TEMPORARY} VALUES {rows}"  # noqa: S608  # a constant and parameters

    @property
    def compare(self) -> str:
        """Read the rows to compare that have a stored row: the place, the values, and the
        stored values.
        """
        given = [f"s.c{at}" for at in range(len(self.quoted))]
        stored = [f"t.{name}" for name in self.quoted]
        keys = " AND ".join(f"t.{self.quoted[at]} = {given[at]}" for at in self.key_places)
        return (
            f"SELECT s.o, {', '.join((*given, *stored))} FROM {TEMPORARY} s "  # noqa: S608  # names are quoted
            f"JOIN {self.table} t ON {keys}"
        )


def _parameters(place: str, width: int, count: int) -> str:
    """A list of this number of parameter rows."""
    return ", ".join([f"({', '.join([place] * width)})"] * count)


def read_plan(con: Connection, target: RowTarget, dialect: SqlDialect) -> SqlPlan:
    """Read the table. Raises `ConfigError` if the rows do not fit it, and the client's errors."""
    from sqlalchemy import JSON

    description = dialect.describe(con, target.table, target.schema)
    dialect.check_session(con, target.table, target.schema)
    table, unique = _reflect(con, target, dialect)
    known = [column.name for column in table.columns]
    for each in target.columns:
        if each not in table.columns:
            rule = f"is not a column of {target.table!r}; it has {', '.join(known)}"
            raise bad("columns", each, rule)
    _check_writable(table, target)
    _check_complete(table, target)
    key = _key_of(target, unique)
    types = {column.name: column.type for column in table.columns}
    for each in dialect.json_columns(con, target.table, target.schema):
        types[each] = JSON()
    preparer = con.dialect.identifier_preparer
    quoted = tuple(preparer.quote(each) for each in target.columns)
    name = preparer.format_table(table)
    names = dict(zip(target.columns, quoted, strict=True))
    return SqlPlan(
        target=target,
        dialect=dialect,
        limits=dialect.limits(con),
        key=key,
        processors=_processors(con, [types[each] for each in target.columns]),
        rules=_rules(con, dialect, target, types),
        orders=_orders(con, dialect, target, types),
        keeps_arrival=_keeps_arrival(table, target, dialect),
        description=description,
        doubt=dialect.doubt(con),
        table=name,
        quoted=quoted,
        placeholder="?" if con.dialect.paramstyle == "qmark" else "%s",
        clause=_clause(target, dialect, name, names, key),
    )


def _reflect(
    con: Connection, target: RowTarget, dialect: SqlDialect
) -> tuple[Table, list[tuple[str, ...]]]:
    """The table and its unique keys, the primary key first."""
    from sqlalchemy import MetaData, Table
    from sqlalchemy.exc import NoSuchTableError

    try:
        table = Table(
            target.table, MetaData(), schema=target.schema, autoload_with=con, resolve_fks=False
        )
    except NoSuchTableError:
        where = "" if target.schema is None else f" in the schema {target.schema!r}"
        raise bad("table", target.table, f"does not exist{where}") from None
    unique: list[tuple[str, ...]] = []
    if table.primary_key.columns:
        unique.append(tuple(column.name for column in table.primary_key.columns))
    unique += dialect.unique_keys(con, target.table, target.schema)
    return table, [*dict.fromkeys(unique)]


def _check_writable(table: Table, target: RowTarget) -> None:
    """Raise `ConfigError` for a column whose values the database generates."""
    for name in target.columns:
        column = table.columns[name]
        if column.computed is not None:
            rule = f"is a generated column of {target.table!r}, which takes no values; leave it out"
            raise bad("columns", name, rule)


def _check_complete(table: Table, target: RowTarget) -> None:
    """Raise `ConfigError` if a column requires a value that no row has."""
    for column in table.columns:
        is_generated = (
            column.computed is not None
            or column.server_default is not None
            or column is table.autoincrement_column
            or column.autoincrement is True  # of MySQL, even alongside the primary key
        )
        if column.name not in target.columns and not column.nullable and not is_generated:
            rule = f"must include {column.name!r}: in {target.table!r} it is NOT NULL without a default"
            raise bad("columns", target.columns, rule)


def _key_of(target: RowTarget, unique: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    within = [key for key in unique if {*key} <= {*target.columns}]
    if target.conflict is None:
        if target.mode == "update" and not within:
            rule = f"has no unique key within the columns; it has {_listed_keys(unique)}"
            raise bad("table", target.table, rule)
        return within[0] if within else None
    for key in unique:
        if {*key} == {*target.conflict}:
            return key
    raise bad(
        "conflict_columns",
        target.conflict,
        f"are not a unique key of {target.table!r}; it has {_listed_keys(unique)}",
    )


def _listed_keys(unique: Sequence[tuple[str, ...]]) -> str:
    return "; ".join(f"({', '.join(key)})" for key in unique) or "none"


def _clause(
    target: RowTarget,
    dialect: SqlDialect,
    table: str,
    names: dict[str, str],
    key: tuple[str, ...] | None,
) -> str:
    if target.mode == "error":
        return ""
    quoted_key = None if key is None else [names[each] for each in key]
    if target.mode == "ignore":
        return dialect.ignore([*names.values()], quoted_key if target.conflict else None)
    assert key is not None
    assert quoted_key is not None
    columns = [each for each in target.columns if each not in key]
    if target.update is not None:
        columns = [each for each in target.update if each not in key]
    if target.version is not None and target.version not in columns:
        columns.append(target.version)
    version = None if target.version is None else names[target.version]
    return dialect.update(table, quoted_key, [names[each] for each in columns], version)


def _processors(con: Connection, types: Sequence[TypeEngine[Any]]) -> dict[int, Processor]:
    from sqlalchemy import JSON
    from sqlalchemy.dialects import mysql

    found: dict[int, Processor] = {}
    for place, kind in enumerate(types):
        process = kind.dialect_impl(con.dialect).bind_processor(con.dialect)
        if process is not None:
            is_of_mysql = isinstance(kind, mysql.JSON)
            found[place] = (
                checked_json(process, has_64_bits=is_of_mysql)
                if isinstance(kind, JSON)
                else process
            )
    return found


def _rules(
    con: Connection, dialect: SqlDialect, target: RowTarget, types: Mapping[str, TypeEngine[Any]]
) -> dict[int, SqlValueRule]:
    is_utc = dialect.is_utc(con)
    return {
        place: sql_rule_of(types[name], dialect.name, is_utc=is_utc)
        for place, name in enumerate(target.columns)
    }


def _orders(
    con: Connection, dialect: SqlDialect, target: RowTarget, types: Mapping[str, TypeEngine[Any]]
) -> dict[int, SqlOrder]:
    collations = dialect.collations(con, target.table, target.schema)
    found = [order_of(types[each], collations.get(each)) for each in target.columns]
    return {place: order for place, order in enumerate(found) if order is not None}


def _keeps_arrival(table: Table, target: RowTarget, dialect: SqlDialect) -> bool:
    from sqlalchemy import DefaultClause

    return (
        target.mode == "error"
        or dialect.is_single_writer
        or any(
            column.autoincrement is True
            or (
                isinstance(column.server_default, DefaultClause)
                and "nextval(" in str(column.server_default.arg)
            )
            for column in table.columns
            if column.name not in target.columns
        )
    )
