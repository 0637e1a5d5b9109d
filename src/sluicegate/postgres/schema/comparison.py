"""The objects of the schema, compared with those that the migrations create. Pure.

1. A repair that replaces objects with the class of the marks first waits for every open append:
   with two classes, readers would not see some appenders.
2. Jobs that were inserted without the trigger are not found by claims. A repair of the trigger or
   its function waits for every open insert, and then adds bells for the existing jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .history import filled
from .objects import schema_objects
from .problems import SchemaProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .catalog import Catalog
    from .objects import SchemaObject
    from .opened import LogSchema


class _Default(NamedTuple):
    """The default of a column that is numbered by a sequence."""

    table: str
    column: str
    text: str
    """The expression, with a placeholder for the schema."""
    danger: str
    """The effect of any other default, for messages."""


_COUNTS = "INCREMENT 1 CACHE 1 NO CYCLE"
_SEQUENCES = {
    "position": f"{_COUNTS} MAXVALUE 281474976710655",
    "job_place": _COUNTS,
    "job_lease": _COUNTS,
}
_DEFAULTS = (
    _Default(
        table="message",
        column="position",
        text="{schema}.next_position()",
        danger="takes no mark, so that readers may pass messages",
    ),
    _Default(
        table="job",
        column="place",
        text="nextval('{schema}.job_place')",
        danger="takes no place from the sequence, so that jobs may overtake one another",
    ),
)
_LOCK_OUT = "LOCK TABLE {schema}.message IN ACCESS EXCLUSIVE MODE"
_LOCK_JOBS = "LOCK TABLE {schema}.job IN SHARE ROW EXCLUSIVE MODE"
_RINGING = {("function", "ring"), ("trigger", "job.ring")}
_RING_AGAIN = "SELECT {schema}.ring_again(NULL)"


def problems_of_objects(schema: LogSchema, catalog: Catalog) -> Iterator[SchemaProblem]:
    """Return the problems of objects that are missing, changed, or usable by every role."""
    here = catalog.objects
    for each in schema_objects():
        if each.key not in here:
            if each.kind != "constraint" or ("table", each.table) in here:
                yield _missing(each, schema)
        elif not _is_as_made(each, schema, catalog):
            text = f"the {each} differs from Sluicegate's definition"
            yield SchemaProblem(f"{each.kind}-changed", text, _replacement(each, schema))
        elif each.kind == "trigger" and not catalog.triggers[each.key[1]].is_enabled:
            text = f"the {each} is disabled: no claim finds inserted jobs"
            yield SchemaProblem("trigger-disabled", text, _replacement(each, schema))
    if catalog.public:
        text = f"every role may execute {', '.join(catalog.public)}"
        repair = f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema.sql} FROM PUBLIC"
        yield SchemaProblem("public-rights", text, (repair,))
    yield from _problems_of_sequences(schema, catalog)


def replaced_class(schema: LogSchema, mark_class: int) -> Iterator[str]:
    """Return the statements that replace every object with the class, once no append is open."""
    yield _LOCK_OUT.format(schema=schema.sql)
    for each in schema_objects():
        if "{class}" in each.statement:
            yield each.sql(schema.name, mark_class, replaces=True)


def _problems_of_sequences(schema: LogSchema, catalog: Catalog) -> Iterator[SchemaProblem]:
    for sequence, options in _SEQUENCES.items():
        if catalog.sequences.get(sequence) is False:
            text = f"the sequence {sequence} must count by 1, without CACHE and without CYCLE"
            repair = f"ALTER SEQUENCE {schema.sql}.{sequence} {options}"
            advice = "then end the sessions of all applications, which still have cached numbers"
            yield SchemaProblem("sequence-options", text, (repair,), advice)
    for table, column, text, danger in _DEFAULTS:
        if ("table", table) not in catalog.objects:
            continue
        wanted = text.format(schema=schema.sql)
        # a catalog shows the type after the argument
        if _plain(wanted).removesuffix(")") not in _plain(
            catalog.defaults.get(f"{table}.{column}", "")
        ):
            repair = f"ALTER TABLE {schema.sql}.{table} ALTER {column} SET DEFAULT {wanted}"
            told = f"the default of {table}.{column} {danger}"
            yield SchemaProblem("default-changed", told, (repair,))


def _missing(each: SchemaObject, schema: LogSchema) -> SchemaProblem:
    repair = [*_made(each, schema, each.sql(schema.name, schema.mark_class))]
    if each.kind == "function":
        repair.append(f"REVOKE EXECUTE ON FUNCTION {schema.sql}.{each.name} FROM PUBLIC")
    advice = "restore it from a dump if it held data" if each.kind == "table" else ""
    return SchemaProblem(f"{each.kind}-missing", f"the {each} is missing", tuple(repair), advice)


def _is_as_made(each: SchemaObject, schema: LogSchema, catalog: Catalog) -> bool:
    if each.body is not None:
        body = filled(each.body, schema.name, schema.mark_class)
        return catalog.bodies[each.name] == body
    if each.kind == "trigger":
        there = catalog.triggers[each.key[1]].definition
        return _plain(there) == _plain(each.sql(schema.name, schema.mark_class))
    if each.name == "appender":
        return f" {schema.mark_class})" in (catalog.appenders or "")
    return True


def _plain(sql: str) -> str:
    """Normalise a text as in the catalogs: no extra white space, no unnecessary quotes."""
    return " ".join(sql.replace('"', "").split())


def _replacement(each: SchemaObject, schema: LogSchema) -> tuple[str, ...]:
    statement = each.sql(schema.name, schema.mark_class, replaces=True)
    if "{class}" in each.statement:
        return ("BEGIN", _LOCK_OUT.format(schema=schema.sql), statement, "COMMIT")
    return _made(each, schema, statement)


def _made(each: SchemaObject, schema: LogSchema, statement: str) -> tuple[str, ...]:
    if each.key not in _RINGING:
        return (statement,)
    lock, ring = (each.format(schema=schema.sql) for each in (_LOCK_JOBS, _RING_AGAIN))
    return ("BEGIN", lock, statement, "COMMIT", ring)
