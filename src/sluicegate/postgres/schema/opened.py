"""The schema of a log: its migrations, and its lookup and check when a part of the application opens
it.

A migration is an SQL file with the schema's name filled in. A released one never changes: its
checksum is stored in the database. A change is a new file.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..._core import checks
from ..._core.checks import bad
from ..._core.errors import ConfigError
from ..client.connections import Connections
from ..client.names import quoted
from ..client.refusals import for_opening
from .rights import options_of

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

    from ..client.access import Access


AnyConnection: TypeAlias = "Connection[Any] | PoolConnectionProxy[Any]"
DEFAULT_SCHEMA = "sluicegate"
LONGEST_NAME = 63
"""PostgreSQL's limit for a name, in bytes."""
_FIND = """
SELECT n.oid, has_schema_privilege(n.oid, 'USAGE') AS may_use, c.oid IS NOT NULL AS is_log,
  coalesce(has_table_privilege(c.oid, 'SELECT'), false) AS may_read,
  CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
    ELSE has_schema_privilege(n.oid, 'CREATE') END AS may_create,
  current_user::text AS role, current_database()::text AS database
FROM (SELECT) AS one LEFT JOIN pg_namespace n ON n.nspname = $1
LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'migration' AND c.relkind = 'r'
"""
_READ = """
SELECT coalesce((SELECT max(version) FROM {schema}.migration), 0) AS version,
  (SELECT value::int FROM {schema}.meta WHERE name = 'class') AS mark_class,
  (SELECT value FROM {schema}.meta WHERE name = 'needs') AS needs
"""

_MAY_APPEND = """
SELECT bool_and(has_function_privilege(oid, 'EXECUTE')) AS may, current_user::text AS role
FROM pg_proc WHERE pronamespace = $1::text::regnamespace AND proname = 'append'
"""


@dataclass(frozen=True, slots=True)
class LogSchema:
    """The installed schema of a log."""

    name: str
    version: int
    mark_class: int
    """The class of the appenders' advisory locks."""
    needs: int = 0
    """The least version that a release must know. A migration that older releases cannot use sets it."""

    @property
    def sql(self) -> str:
        """The quoted name."""
        return quoted(self.name)


@dataclass(frozen=True, slots=True)
class FoundSchema:
    """The catalogs' information about a schema of that name."""

    exists: bool
    is_log: bool
    """Whether it has the log's table of migrations."""
    may_read: bool
    """Whether the role can read that table."""
    may_create: bool
    """Whether the role can create the schema, or objects in it if it exists."""
    role: str
    database: str


def check_schema_name(name: object, option: str = "schema") -> str:
    """Check the name of a log's schema. Raises `ConfigError`."""
    text = checks.text(option, cast("str", name))
    is_plain = text.isidentifier() and len(text.encode()) <= LONGEST_NAME
    if not is_plain or text.startswith("pg_"):
        rule = (
            "must consist of letters, digits and underscores, must not begin with a digit or pg_, "
            f"and have at most {LONGEST_NAME} bytes"
        )
        raise bad(option, text, rule)
    return text


async def found_schema(con: AnyConnection, name: str) -> FoundSchema:
    """Look up the schema in the catalogs. Suspends for one round trip."""
    row = await con.fetchrow(_FIND, name)
    assert row is not None  # always one row
    return FoundSchema(
        exists=row["oid"] is not None,
        is_log=row["is_log"],
        may_read=bool(row["may_use"]) and row["may_read"],
        may_create=row["may_create"],
        role=row["role"],
        database=row["database"],
    )


async def read_schema(con: AnyConnection, name: str) -> LogSchema:
    """Read the version and the class of an existing log schema."""
    row = await con.fetchrow(_READ.format(schema=quoted(name)))
    assert row is not None  # always one row
    return LogSchema(
        name=name,
        version=row["version"],
        mark_class=row["mark_class"] or 0,
        needs=int(row["needs"] or 0),
    )


async def opened_schema(con: AnyConnection, name: str = DEFAULT_SCHEMA) -> LogSchema:
    """Return the installed schema, which is of this release's version or of a compatible newer one.

    Suspends for two round trips, which must be in a transaction behind a pooler; changes nothing.
    Raises `ConfigError`, with the command that repairs it, if the schema is missing, older or too
    new, or the role may not use it; and client errors.
    """
    check_schema_name(name)
    found = await found_schema(con, name)
    where = f"the database {found.database!r}"
    if not found.is_log:
        what = "has no table of a log" if found.exists else "does not exist"
        rule = f"{what} in {where}; run `sluicegate pg install DSN --schema {name}`"
        raise bad("schema", name, rule)
    if not found.may_read:
        rule = (
            f"may not be used by the role {found.role!r}; run `sluicegate pg install DSN --schema "
            f"{name}` with {options_of(found.role)}"
        )
        raise bad("schema", name, rule)
    schema = await read_schema(con, name)
    if schema.version < newest():
        raise older(schema)
    if schema.needs > newest():
        rule = (
            f"is at version {schema.version}, which releases of Sluicegate that know only version "
            f"{newest()} cannot use; install the release that upgraded it, or a later one"
        )
        raise bad("schema", name, rule)
    return schema


async def check_may_append(con: AnyConnection, name: str) -> None:
    """Raise `ConfigError`, with the command that repairs it, if the role may not append."""
    row = await con.fetchrow(_MAY_APPEND, quoted(name))
    if row is not None and not row["may"]:
        role = row["role"]
        rule = f"gives the role {role!r} no right to append; run `sluicegate pg install DSN"
        raise bad("schema", name, f"{rule} --schema {name}` with --append {role}")


def older(schema: LogSchema) -> ConfigError:
    """Return the error for a schema that must be upgraded first."""
    rule = (
        f"is at version {schema.version}, and this release of Sluicegate needs {newest()}; run "
        f"`sluicegate pg upgrade DSN --schema {schema.name}`"
    )
    return bad("schema", schema.name, rule)


@dataclass(frozen=True, slots=True)
class Migration:
    """One version of the schema, as a step from the previous version."""

    version: int
    name: str
    text: str
    """SQL with placeholders."""

    @property
    def checksum(self) -> str:
        """A checksum of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def filled(text: str, schema: str, mark_class: int) -> str:
    """Return the text with its placeholders replaced. Other braces are kept: SQL uses them."""
    return text.replace("{schema}", quoted(schema)).replace("{class}", str(mark_class))


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations, oldest first."""
    folder = files("sluicegate.postgres.schema") / "migrations"  # the package may be in a zip file
    found: list[Migration] = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        number, _, name = file.name.removesuffix(".sql").partition("_")
        text = file.read_text(encoding="utf-8")
        found.append(Migration(version=int(number), name=name, text=text))
    return tuple(found)


def newest() -> int:
    """Return the version that this release of Sluicegate installs."""
    return migrations()[-1].version


async def connected_to_log(stack: AsyncExitStack, access: Access, schema: str) -> Connections:
    """Connect and check the schema; `stack` closes the connections.

    Raises `ConfigError` if the server refuses the connection or the schema is missing or older, and
    `UnavailableError` if no server responds.
    """
    connections = await Connections.to(access)
    stack.push_async_callback(connections.close)
    try:
        async with connections.opening() as con, connections.statements.block(con):
            await opened_schema(con, schema)
    except ConfigError:
        raise
    except Exception as error:
        raise for_opening(error, access.place)  # noqa: B904  # it has its cause
    return connections
