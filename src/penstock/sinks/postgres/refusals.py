"""Refusals: errors that no row causes, each with the repair that an operator has to make.

1. Before a row is blamed, the table is read again. A table that is gone, or has lost a column or a
   key, is a refusal; a table that was changed gives a new plan, by which the same rows are written
   again.
2. A missing right is looked up by name (`has_table_privilege` and its like). If the lookup fails,
   the refusal stands: no guess makes a row permanent.
3. The text for logs never holds the server's message of an error that may quote a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..._clients.postgres.errors import (
    NO_PRIVILEGE,
    NOT_NULL,
    classify_postgres,
    is_stale,
    message_of,
    shown,
    sqlstate,
)
from ..._core.causes import caused
from ..._core.errors import (
    ConfigError,
    ErrorClass,
    PenstockError,
    RefusedError,
    SinkError,
    ThrottledError,
    UnavailableError,
)
from ..._core.told import for_log, text_of
from .rights import asked
from .table import quoted, read_table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from .config import Target
    from .sql import Plan

T = TypeVar("T")


def refusal(error: Exception, what: str, repair: str) -> RefusedError:
    """`RefusedError` for an error that no row is to blame for."""
    made = RefusedError(f"{what}: {message_of(error)}", repair=repair)
    made.summary = f"{what}: {shown(error)}; to repair: {repair}"
    return caused(made, error)


def refused_again(error: RefusedError) -> RefusedError:
    """The same refusal for another waiter: an exception instance has one."""
    made = RefusedError(text_of(error))
    made.repair, made.summary = error.repair, error.summary
    return caused(made, error.__cause__ or error)


async def asked_again(con: PoolConnectionProxy[Any], ask: Callable[[], Awaitable[T]]) -> T:
    """Run a query of our own, and once more where its prepared statement was gone."""
    try:
        return await ask()
    except Exception as error:
        if not is_stale(error):
            raise
        await con.reload_schema_state()
        return await ask()


@dataclass(frozen=True, slots=True)
class Judge:
    """Tells a sink's refusals from errors of single rows, and names the repair, by queries on the
    connection that failed.
    """

    target: Target
    place: str

    async def read_again(self, con: PoolConnectionProxy[Any], plan: Plan, error: Exception) -> Plan:
        """The plan by the table as it is now. Raises `RefusedError` where the sink cannot write to
        it any more.
        """
        what, path = self._what(plan), plan.table.qualified
        try:
            table = await asked_again(
                con, partial(read_table, con, plan.table.name, plan.table.schema, ())
            )
        except ConfigError:
            raise refusal(
                error, what, f"create table {path} at {self.place}, or give it its name back"
            ) from error
        except Exception as second:
            if sqlstate(second) != NO_PRIVILEGE:
                raise
            raise await self.refusal(con, plan, second, again=False) from error
        names = {column.name for column in table.columns}
        gone = [
            quoted(name)
            for name in dict.fromkeys((*plan.columns, *plan.returning))
            if name not in names
        ]
        if gone:
            raise refusal(
                error, what, f"add column {', '.join(gone)} to table {path} at {self.place} again"
            ) from error
        computed = [quoted(name) for name in plan.columns if table.column(name).generated]
        if computed:
            raise refusal(
                error,
                what,
                f"make column {', '.join(computed)} of table {path} at {self.place} one that "
                "can be written",
            ) from error
        try:
            found = self.target.plan(table, reads_text=plan.reads_text)
        except ConfigError as second:
            raise refusal(
                error, what, f"give table {path} at {self.place} its unique key back ({second})"
            ) from error
        return replace(found, copies=plan.copies)

    async def missing(self, con: PoolConnectionProxy[Any], plan: Plan, *, again: bool) -> bool:
        """Whether the role lacks a right. Raises what the server raises."""
        return bool((await self._ask(con, plan, again=again))[1])

    async def _ask(
        self, con: PoolConnectionProxy[Any], plan: Plan, *, again: bool
    ) -> tuple[str, Sequence[str]]:
        found = await asked_again(con, partial(con.fetchrow, asked(plan, again=again)))
        assert found is not None
        return found["role"], found["missing"]

    async def refusal(
        self, con: PoolConnectionProxy[Any], plan: Plan, error: Exception, *, again: bool
    ) -> RefusedError:
        """The refusal that `error` is, with its repair."""
        if sqlstate(error) == NO_PRIVILEGE:
            return refusal(
                error, self._what(plan), await self._grant(con, plan, error, again=again)
            )
        if sqlstate(error) == NOT_NULL:
            column = quoted(str(getattr(error, "column_name", None)))
            repair = (
                f"give column {column} of table {plan.table.qualified} at {self.place} a "
                "default, or write it (columns=)"
            )
            return refusal(error, self._what(plan), repair)
        return refusal(error, self._what(plan), repair_of(error, self.place))

    async def _grant(
        self, con: PoolConnectionProxy[Any], plan: Plan, error: Exception, *, again: bool
    ) -> str:
        try:
            role, missing = await self._ask(con, plan, again=again)
        except Exception as second:
            return (
                f"grant the sink's role what it lacks at {self.place} ({_privilege(error)}; "
                f"asking for it failed: {for_log(second)})"
            )
        if not missing:
            return f"grant role {role} what it lacks at {self.place} ({_privilege(error)})"
        return f"grant {', '.join(missing)} at {self.place} to role {role}"

    def _what(self, plan: Plan) -> str:
        return f"PostgreSQL at {self.place} refuses every write to table {plan.table.qualified}"


def repair_of(error: Exception, place: str) -> str:
    """The repair, by the error's SQLSTATE."""
    state = sqlstate(error) or ""
    if is_stale(error):
        return (
            f"let the pooler at {place} keep prepared statements, or pass "
            "connect_options={'statement_cache_size': 0}"
        )
    if not state:
        return f"put right how the sink connects to {place} ({shown(error)})"
    if state[:2] == "28":
        return (
            f"let the role log in at {place}: its password, its LOGIN attribute, and "
            f"pg_hba.conf ({message_of(error)})"
        )
    return {
        "2200H": f"give the sequence more numbers at {place} ({message_of(error)})",
        "25006": f"make {place} writable (it is a standby, or read-only by "
        "default_transaction_read_only), or connect to the primary",
        "3D000": f"create the database at {place} ({message_of(error)})",
        NO_PRIVILEGE: f"grant the sink's role what it lacks at {place} ({_privilege(error)})",
        "53100": f"free disk space at {place}",
        "XX001": f"restore the table's data at {place}: the server found it corrupted",
        "XX002": f"rebuild the table's indexes at {place} (REINDEX): the server found one "
        "corrupted",
    }.get(
        state,
        f"find at {place} what raises it ({shown(error)}): the table's definition, its "
        "triggers and rules",
    )


def _privilege(error: Exception) -> str:
    """The server's words for the missing privilege; the SQLSTATE alone where a trigger may have
    chosen them.
    """
    return message_of(error) if classify_postgres(error) is ErrorClass.REFUSED else shown(error)


def locked(error: Exception, plan: Plan, place: str) -> UnavailableError:
    """`UnavailableError` for a lock on the whole table. Nothing was stored."""
    made = UnavailableError(
        f"another session has locked table {plan.table.qualified} at {place} ({message_of(error)})"
    )
    return caused(made, error)


def for_connecting(error: Exception, place: str) -> Exception:
    """The error to raise where no connection could be made. Nothing was written, and no item is to
    blame, whatever the cause.
    """
    if isinstance(error, PenstockError):
        return error
    kind = classify_postgres(error)
    if kind is ErrorClass.THROTTLE:
        return _unsuccessful(ThrottledError, error, place)
    if isinstance(error, TimeoutError) or kind in {ErrorClass.TRANSIENT, ErrorClass.UNAVAILABLE}:
        return _unsuccessful(UnavailableError, error, place)
    return refusal(error, f"no connection to {place}", repair_of(error, place))


def _unsuccessful(kind: type[SinkError], error: Exception, place: str) -> SinkError:
    made = kind(f"no connection to {place}: {text_of(error) or type(error).__name__}")
    made.summary = f"no connection to {place}: {for_log(error)}"
    return caused(made, error)
