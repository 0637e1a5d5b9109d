"""Installation and upgrade of a log's schema.

1. A lock in the database allows one installation at a time; later ones see its result.
2. A new schema is installed in one transaction, and an upgrade is one transaction for each
   migration, so a failure always leaves a complete version.
3. No superuser is needed: the role either creates the schema, which needs CREATE on the database,
   or fills an empty schema in which it may create.
4. Roles with rights are recorded, and an upgrade grants them rights on new objects.
5. A dry run returns the same statements without executing them.
6. Each log of a database has its own class of advisory locks for appenders. It is part of the text
   of `next_position`, which every role can read and which a dump contains. Two logs of one class
   would mistake each other's marks for their own.
"""

# ruff: noqa: S608  # names in statements are quoted, values are literals

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ..._core.checks import bad
from ..client.names import literal, quoted
from .objects import split
from .opened import (
    LogSchema,
    check_schema_name,
    filled,
    found_schema,
    migrations,
    older,
    read_schema,
)
from .rights import grants_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .opened import AnyConnection, FoundSchema, Migration
    from .rights import Roles


_BEGIN = (
    "SELECT pg_advisory_xact_lock(hashtext('sluicegate pg install'))",
    "SET LOCAL search_path = pg_catalog, pg_temp",
    # an installation that waits for a long transaction would block every appender behind it
    "SELECT set_config('lock_timeout', '5s', true) WHERE current_setting('lock_timeout') = '0'",
)
_FIRST_OBJECT = """
SELECT format('%s %I', kind, name) FROM (
  SELECT 'relation' AS kind, relname AS name FROM pg_class WHERE relnamespace = $1::regnamespace
  UNION ALL SELECT 'function', proname FROM pg_proc WHERE pronamespace = $1::regnamespace
  UNION ALL SELECT 'type', typname FROM pg_type WHERE typnamespace = $1::regnamespace
) AS objects LIMIT 1
"""
_OWNER = """
SELECT pg_get_userbyid(relowner)::text AS owner, pg_has_role(relowner, 'USAGE') AS is_it
FROM pg_class WHERE oid = $1::regclass
"""
_ABSENT = """
SELECT role FROM unnest($1::text[]) AS r (role)
WHERE role NOT IN (SELECT rolname FROM pg_roles) LIMIT 1
"""
_GRANTEES = """
SELECT rights, array_agg(role::text ORDER BY role) AS roles FROM {schema}.grantee
WHERE role IN (SELECT rolname FROM pg_roles) GROUP BY rights
"""
CLASSES = range(1024, 32768)
"""Applications often lock small numbers (class 0) and negative ones (class 65535)."""
_TAKEN = r"""
SELECT n.nspname::text AS schema, substring(p.prosrc FROM 'sluicegate\.mark_(\d+)')::int AS mark_class
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE p.proname = 'next_position' AND p.prosrc LIKE '%sluicegate.mark\_%'
"""


async def install(
    con: AnyConnection,
    name: str,
    *,
    library: str,
    roles: Roles | None = None,
    dry: bool = False,
    history: Sequence[Migration] | None = None,
) -> list[str]:
    """Install the schema unless it exists, and grant the roles their rights.

    Returns the statements of the transaction; none if nothing is needed. Raises `ConfigError` for a
    schema with other objects, an older version, and a role that does not exist.
    """
    check_schema_name(name)
    async with con.transaction(isolation="read_committed"):
        if not dry:
            await _execute(con, _BEGIN)
        await _check_roles(con, roles or {})
        statements = await _installation(con, name, library, history or migrations())
        grants = grants_for(name, roles or {})
        if not statements and grants:
            await _check_owner(con, name)
        statements += grants
        if not dry:
            await _execute(con, statements)
    return [*_BEGIN, *statements] if statements else []


async def _installation(
    con: AnyConnection, name: str, library: str, history: Sequence[Migration]
) -> list[str]:
    found = await found_schema(con, name)
    if found.is_log:
        schema = await read_schema(con, name)
        if schema.version < history[-1].version:
            raise older(schema)
        return []
    statements: list[str] = []
    if not found.exists:
        statements.append(f"CREATE SCHEMA {quoted(name)}")
    elif (thing := await con.fetchval(_FIRST_OBJECT, quoted(name))) is not None:
        rule = f"exists, and contains other objects ({thing}); choose another, or an empty one"
        raise bad("schema", name, rule)
    if not found.may_create:
        raise bad("schema", name, _not_allowed(found, name))
    schema = LogSchema(name=name, version=0, mark_class=await free_class(con, name))
    for migration in history:
        statements += _statements_of(schema, migration, library)
    meta = f"INSERT INTO {schema.sql}.meta VALUES ('class', '{schema.mark_class}')"
    return [*statements, meta]


def _not_allowed(found: FoundSchema, name: str) -> str:
    """Return the error, with the remedy, if the role may not create or fill the schema."""
    role = quoted(found.role)
    if found.exists:
        owned = f"ALTER SCHEMA {quoted(name)} OWNER TO {role}"
        return f"exists, and the role {found.role!r} may not create in it; its owner can: {owned}"
    create = f"CREATE SCHEMA {quoted(name)} AUTHORIZATION {role}"
    grant = f"GRANT CREATE ON DATABASE {quoted(found.database)} TO {role}"
    return (
        f"cannot be created by the role {found.role!r}; the owner of the database can: {create}, "
        f"or {grant}"
    )


async def upgrade(
    con: AnyConnection,
    name: str,
    *,
    library: str,
    dry: bool = False,
    history: Sequence[Migration] | None = None,
) -> list[list[str]]:
    """Apply the missing migrations of the history; return the statements of each transaction.

    Raises `ConfigError` if the schema is not installed, or the role does not own it.
    """
    check_schema_name(name)
    history = migrations() if history is None else history
    transactions: list[list[str]] = []
    if dry:
        schema = await _find_installed(con, name)
        return [
            [*_BEGIN, *await _step(con, schema, each, library, is_last=each is history[-1])]
            for each in history
            if each.version > schema.version
        ]
    for migration in history:
        async with con.transaction(isolation="read_committed"):
            await _execute(con, _BEGIN)
            schema = await _find_installed(con, name)
            if migration.version <= schema.version:
                continue
            is_last = migration is history[-1]
            statements = await _step(con, schema, migration, library, is_last=is_last)
            await _execute(con, statements)
        transactions.append([*_BEGIN, *statements])
    return transactions


async def _find_installed(con: AnyConnection, name: str) -> LogSchema:
    found = await found_schema(con, name)
    if not found.is_log:
        rule = f"is not installed in the database {found.database!r}; run `sluicegate pg install`"
        raise bad("schema", name, rule)
    await _check_owner(con, name)
    return await read_schema(con, name)


async def _step(
    con: AnyConnection, schema: LogSchema, migration: Migration, library: str, *, is_last: bool
) -> list[str]:
    """Return the statements of one migration; the last one also grants rights on new objects."""
    statements = _statements_of(schema, migration, library)
    if is_last:
        rows = await con.fetch(_GRANTEES.format(schema=schema.sql))
        statements += grants_for(schema.name, {row["rights"]: row["roles"] for row in rows})
    return statements


def _statements_of(schema: LogSchema, migration: Migration, library: str) -> list[str]:
    """Return the statements of one migration, and the insertion of its row."""
    values = (str(migration.version), *map(literal, (migration.name, migration.checksum, library)))
    remember = f"INSERT INTO {schema.sql}.migration (version, name, checksum, library)"
    return [
        *(filled(each, schema.name, schema.mark_class) for each in split(migration.text)),
        f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema.sql} FROM PUBLIC",
        f"{remember} VALUES ({', '.join(values)})",
    ]


async def _check_roles(con: AnyConnection, roles: Roles) -> None:
    for right, names in roles.items():
        absent = await con.fetchval(_ABSENT, list(names))
        if absent is not None:
            raise bad(right, absent, "is not a role of this server; create it first (CREATE ROLE)")


async def _check_owner(con: AnyConnection, name: str) -> None:
    """Check that the role owns the schema: grants by others are ignored with a warning."""
    row = await con.fetchrow(_OWNER, f"{quoted(name)}.migration")
    if row is not None and not row["is_it"]:
        rule = f"belongs to the role {row['owner']!r}; connect as it, or as a member of it"
        raise bad("schema", name, rule)


async def _execute(con: AnyConnection, statements: Iterable[str]) -> None:
    for statement in statements:
        await con.execute(statement)


async def taken_classes(con: AnyConnection) -> dict[str, int]:
    """Return the class of each log in the database, by schema."""
    return {row["schema"]: row["mark_class"] for row in await con.fetch(_TAKEN)}


async def free_class(con: AnyConnection, schema: str) -> int:
    """Return a class that no other log has; the schema's name determines it, where possible."""
    taken = {found for name, found in (await taken_classes(con)).items() if name != schema}
    first = int.from_bytes(hashlib.sha256(schema.encode()).digest()[:8], "big") % len(CLASSES)
    order = (CLASSES[(first + step) % len(CLASSES)] for step in range(len(CLASSES)))
    return next(each for each in order if each not in taken)
