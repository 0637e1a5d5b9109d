"""Installation, upgrade and checks of a schema, for the command line and for programs.

Each call opens one connection, which prepares no statements, and closes it. Errors never show the
DSN.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.classify import caused
from ..._core.errors import ConfigError, SluicegateError, UnavailableError
from ..client.access import access_of, connect, need_asyncpg
from ..client.answers import ANSWER_TIMEOUT, AnsweredConnection, disconnect, keep_alive
from ..client.errors import is_lost, shown, sqlstate
from ..client.refusals import for_opening, refusal, repair_of
from .check import check
from .installation import install, upgrade
from .opened import DEFAULT_SCHEMA, check_schema_name
from .rights import checked_roles

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection

    from ..client.access import PostgresAccess
    from .objects import SchemaProblem
    from .opened import AnyConnection

_CLOSE_SECONDS = 5.0
_MIGRATION_WITHIN = 3600.0
"""Seconds for a statement that may create an index or wait for another installation."""
_LOCKED = "55P03"


async def install_streams(
    dsn: str | PostgresAccess,
    *,
    schema: str = DEFAULT_SCHEMA,
    append: str | Collection[str] = (),
    read: str | Collection[str] = (),
    subscribe: str | Collection[str] = (),
    enqueue: str | Collection[str] = (),
    work: str | Collection[str] = (),
    operate: str | Collection[str] = (),
    dry_run: bool = False,
) -> list[str]:
    """Install the schema of streams and queues unless it exists, and grant rights on it to roles.

    Suspends while it connects and executes. Everything is one transaction: after an error or a
    cancellation nothing is installed. Concurrent installations wait for each other.

    Args:
        dsn: the database, as `postgresql://...` or a `PostgresAccess`; the role needs CREATE on
            it, or an empty schema in which it may create. It becomes the owner of the schema.
        schema: the name of the schema; default `sluicegate`.
        append: roles that may append messages, but not read or change them.
        read: roles that may read messages.
        subscribe: roles that may read messages and store positions of subscriptions.
        enqueue: roles that may enqueue jobs, but not read or claim them.
        work: roles that may read queues, claim and settle jobs, and fire schedules.
        operate: roles that may read queues, create and change them and their schedules, resume and
            park keys, and cancel, retry, redrive and purge jobs.
        dry_run: execute nothing.

    Returns:
        The statements of the transaction; none if there was nothing to do.

    Raises:
        ConfigError: for a bad argument, a refused login, a schema with other objects or an older
            version, missing rights of the role, or a role that does not exist.
        UnavailableError: no server responds, or the connection was lost.
        RefusedError: the server refuses, for example because it is read-only.
    """
    roles = checked_roles(
        append=append,
        read=read,
        subscribe=subscribe,
        enqueue=enqueue,
        work=work,
        operate=operate,
    )
    check_schema_name(schema)
    checks.flag("dry_run", dry_run)
    async with _connect(dsn, _MIGRATION_WITHIN) as con:
        done = await install(con, schema, library=_library(), roles=roles, dry=dry_run)
    return ["BEGIN", *done, "COMMIT"] if done else []


async def upgrade_streams(
    dsn: str | PostgresAccess, *, schema: str = DEFAULT_SCHEMA, dry_run: bool = False
) -> list[str]:
    """Upgrade the schema of streams and queues to this release's version; contents are kept.

    Suspends while it connects and executes. Each migration is a transaction: after an error or a
    cancellation the schema is at a complete version, and another call continues. Applications of
    the previous release continue to work.

    Args:
        dsn: the database, as `postgresql://...` or a `PostgresAccess`; the role must own the
            schema.
        schema: the name of the schema; default `sluicegate`.
        dry_run: execute nothing.

    Returns:
        The statements, including those of the transactions; none if there was nothing to do.

    Raises:
        ConfigError: for a bad argument, a refused login, a missing schema or one of another owner.
        UnavailableError: no server responds, the connection was lost, or a long transaction uses
            the schema.
        RefusedError: the server refuses, for example because it is read-only.
    """
    check_schema_name(schema)
    checks.flag("dry_run", dry_run)
    async with _connect(dsn, _MIGRATION_WITHIN) as con:
        transactions = await upgrade(con, schema, library=_library(), dry=dry_run)
    return [each for done in transactions for each in ("BEGIN", *done, "COMMIT")]


async def check_streams(
    dsn: str | PostgresAccess, *, schema: str = DEFAULT_SCHEMA
) -> list[SchemaProblem]:
    """Check the schema of streams and queues for problems; changes nothing.

    Suspends while it connects and queries. Connect as the owner of the schema for a complete check:
    objects that the role may not read are not checked, which a note reports. Rights of roles are
    not checked: `install_streams` grants missing ones again.

    Args:
        dsn: the database, as `postgresql://...` or a `PostgresAccess`.
        schema: the name of the schema; default `sluicegate`.

    Returns:
        The problems, notes last; each has a name, a text, and the statements that repair it.

    Raises:
        ConfigError: for a bad argument, or a refused login.
        UnavailableError: no server responds, or the connection was lost.
        RefusedError: the server refuses the queries.
    """
    check_schema_name(schema)
    async with _connect(dsn, ANSWER_TIMEOUT) as con:
        return await check(con, schema)


def _library() -> str:
    """Return the running version of Sluicegate, installed or not."""
    return str(sys.modules[__name__.partition(".")[0]].__version__)


@asynccontextmanager
async def _connect(dsn: str | PostgresAccess, seconds: float) -> AsyncGenerator[AnyConnection]:
    """Connect; each statement is answered within these seconds."""
    need_asyncpg()
    access = access_of(dsn, lends=False)
    import asyncpg  # an optional dependency

    try:
        con = await connect(access)
    except ConfigError:
        raise
    except Exception as error:
        raise for_opening(error, access.place)  # noqa: B904  # it has its cause
    keep_alive(con)
    try:
        yield AnsweredConnection.of(con, seconds, access.place)
    except SluicegateError:
        raise
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise _public_error(error, access.place)  # noqa: B904  # it has its cause
    finally:
        await disconnect(con, _CLOSE_SECONDS)


def _public_error(error: Exception, place: str) -> SluicegateError:
    if sqlstate(error) == _LOCKED:
        text = f"a transaction at {place} uses the log, and did not end within lock_timeout"
    elif is_lost(error):
        text = f"the connection to {place} was lost; run a check to see what was done"
    else:
        return refusal(error, f"the log at {place}", repair_of(error, place))
    return caused(UnavailableError(f"{text} ({shown(error)})"), error)
