"""Installation and upgrade of a log's schema.

1. A lock of the database admits one installation at a time: the others find what it has done.
2. A new schema is installed in one transaction, and an upgrade is one transaction for each
   migration, so a failure leaves a complete version behind.
3. No superuser is needed: the role creates the schema, which takes CREATE on the database, or
   fills an empty one in which it may create.
"""

# ruff: noqa: S608  # names in statements are quoted, values are literals

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._core.checks import bad
from ..names import literal, quoted
from .history import migrations, newest
from .mark_class import free_class
from .opened import LogSchema, check_schema_name, found_schema, older, read_schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .history import Migration
    from .opened import AnyConnection

_LOCK = "SELECT pg_advisory_xact_lock(hashtext('penstock pg install'))"
_SESSION = """
SET LOCAL search_path = pg_catalog, pg_temp;
SELECT set_config('lock_timeout', '5s', true) WHERE current_setting('lock_timeout') = '0'
"""
"""A migration that waits for a long transaction must not hold up every appender behind it."""
_FIRST_OBJECT = """
SELECT format('%s %I', kind, name) FROM (
  SELECT 'relation' AS kind, relname AS name FROM pg_class WHERE relnamespace = $1::regnamespace
  UNION ALL SELECT 'function', proname FROM pg_proc WHERE pronamespace = $1::regnamespace
  UNION ALL SELECT 'type', typname FROM pg_type WHERE typnamespace = $1::regnamespace
) AS objects LIMIT 1
"""


async def install(con: AnyConnection, name: str, *, library: str) -> list[str]:
    """Install the schema unless it is there; return the statements that were executed.

    Raises `ConfigError` for a schema that holds other things, or an older version.
    """
    check_schema_name(name)
    async with con.transaction(isolation="read_committed"):
        await con.execute(_LOCK)
        statements = await planned_installation(con, name, library=library)
        await _execute(con, statements)
    return statements


async def planned_installation(con: AnyConnection, name: str, *, library: str) -> list[str]:
    """The statements that install the schema; none if it is there already."""
    found = await found_schema(con, name)
    if found.is_log:
        schema = await read_schema(con, name)
        if schema.version < newest():
            raise older(schema)
        return []
    statements: list[str] = []
    if not found.exists:
        statements.append(f"CREATE SCHEMA {quoted(name)}")
    elif (thing := await con.fetchval(_FIRST_OBJECT, quoted(name))) is not None:
        rule = f"exists, and holds other things ({thing}); choose another, or an empty one"
        raise bad("schema", name, rule)
    schema = LogSchema(name=name, version=0, mark_class=await free_class(con, name))
    for migration in migrations():
        statements += steps(schema, migration, library)
    meta = f"INSERT INTO {schema.sql}.meta VALUES ('class', '{schema.mark_class}')"
    return [*statements, meta]


async def upgrade(con: AnyConnection, name: str, *, library: str) -> LogSchema:
    """Apply the migrations that are missing; return the schema as it was before.

    Raises `ConfigError` for a schema that is not installed.
    """
    before: LogSchema | None = None
    while True:
        async with con.transaction(isolation="read_committed"):
            await con.execute(_LOCK)
            found = await found_schema(con, name)
            if not found.is_log:
                raise bad("schema", name, "is not installed; run `penstock pg install` first")
            schema = await read_schema(con, name)
            before = before or schema
            missing = [each for each in migrations() if each.version > schema.version]
            if not missing:
                return before
            await _execute(con, steps(schema, missing[0], library))


def steps(schema: LogSchema, migration: Migration, library: str) -> list[str]:
    """The statements of one migration, and the row that remembers it."""
    values = (str(migration.version), *map(literal, (migration.name, migration.checksum, library)))
    remember = f"INSERT INTO {schema.sql}.migration (version, name, checksum, library)"
    return [
        migration.sql(schema.name, schema.mark_class),
        f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema.sql} FROM PUBLIC",
        f"{remember} VALUES ({', '.join(values)})",
    ]


async def _execute(con: AnyConnection, statements: Iterable[str]) -> None:
    await con.execute(_SESSION)
    for statement in statements:
        await con.execute(statement)
