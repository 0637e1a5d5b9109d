"""Refusals of the table, as opposed to errors of single rows, each with its repair.

1. The table is read again before a row is blamed. A missing table, column or key is a refusal; a
   changed table results in a new plan, with which the same rows are written again.
2. A missing privilege is looked up by name (with `has_table_privilege` and similar functions). If
   the lookup fails, the refusal stands: a row never fails permanently on a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ...._core.classify import caused
from ...._core.errors import ConfigError, RefusedError, UnavailableError
from ...._core.logs import for_log
from ...client.errors import NO_PRIVILEGE, NOT_NULL, is_gone, is_stale, message_of, sqlstate
from ...client.names import quoted
from ...client.refusals import privilege, refusal, repair_of
from ..plan.rights import asked
from ..plan.table import read_table
from ..writing.encodable import by_codecs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from ..plan.plan import TablePlan
    from ..plan.table import Table
    from ..plan.target import Target
    from ..writing.sender import Sender

T = TypeVar("T")


async def asked_again(con: PoolConnectionProxy[Any], ask: Callable[[], Awaitable[T]]) -> T:
    """Run one of our own queries; repeat it once if its prepared statement was lost."""
    try:
        return await ask()
    except Exception as error:
        if not is_stale(error):
            raise
        await con.reload_schema_state()
        return await ask()


@dataclass(frozen=True, slots=True)
class Judge:
    """Finds refusals and their repairs, with queries on the connection that failed."""

    target: Target
    place: str

    async def read_again(
        self, con: PoolConnectionProxy[Any], plan: TablePlan, error: Exception
    ) -> TablePlan:
        """The plan for the current table.

        Raises `RefusedError` if the sink can no longer write to the table.
        """
        table = await self._table(con, plan, error)
        repair = self._repair_of(plan, table)
        if repair is None:
            try:
                found = self.target.plan(table, reads_text=plan.reads_text)
            except ConfigError as second:
                cure = "drop the rule" if table.has_rules else "restore the unique key"
                repair = f"{cure} of {self._where(plan)} ({second})"
            else:
                found = replace(found, json_types=plan.json_types)
                return await asked_again(con, partial(by_codecs, con, found))
        raise refusal(error, self._what(plan), repair) from error

    async def _table(
        self, con: PoolConnectionProxy[Any], plan: TablePlan, error: Exception
    ) -> Table:
        try:
            return await asked_again(
                con, partial(read_table, con, plan.table.name, plan.table.schema, ())
            )
        except ConfigError:
            repair = f"create {self._where(plan)}, or restore its name"
            raise refusal(error, self._what(plan), repair) from error
        except Exception as second:
            if sqlstate(second) != NO_PRIVILEGE:
                raise
            raise await self.refusal(con, plan, second, again=False) from error

    def _repair_of(self, plan: TablePlan, table: Table) -> str | None:
        """The repair of a table whose columns no longer fit the plan."""
        names = {column.name for column in table.columns}
        wanted = dict.fromkeys((*plan.columns, *plan.returning))
        gone = [quoted(name) for name in wanted if name not in names]
        if gone:
            return f"add column {', '.join(gone)} to {self._where(plan)} again"
        computed = [quoted(name) for name in plan.columns if table.column(name).generated]
        if computed:
            made = f"make column {', '.join(computed)} of {self._where(plan)}"
            return f"{made} writable"
        return None

    def _where(self, plan: TablePlan) -> str:
        return f"table {plan.table.qualified} at {self.place}"

    async def missing(self, con: PoolConnectionProxy[Any], plan: TablePlan, *, again: bool) -> bool:
        """Whether the role lacks a privilege. Raises the server's errors."""
        return bool((await self._ask(con, plan, again=again))[1])

    async def _ask(
        self, con: PoolConnectionProxy[Any], plan: TablePlan, *, again: bool
    ) -> tuple[str, Sequence[str]]:
        found = await asked_again(con, partial(con.fetchrow, asked(plan, again=again)))
        assert found is not None
        return found["role"], found["missing"]

    async def refuses(self, sender: Sender, error: Exception) -> RefusedError:
        """Roll the write back; convert `error` to a refusal of every write, with its repair."""
        if not is_gone(sender.con):
            await sender.undo()
        again = bool(sender.remaining.maybe)
        return await self.refusal(sender.con, sender.plan, error, again=again)

    async def refusal(
        self, con: PoolConnectionProxy[Any], plan: TablePlan, error: Exception, *, again: bool
    ) -> RefusedError:
        """Convert `error` to a refusal of every write, with its repair."""
        if sqlstate(error) == NO_PRIVILEGE:
            repair = await self._grant(con, plan, error, again=again)
        elif sqlstate(error) == NOT_NULL:
            column = quoted(str(getattr(error, "column_name", None)))
            repair = (
                f"give column {column} of {self._where(plan)} a default, or write it (columns=)"
            )
        else:
            repair = repair_of(error, self.place)
        return refusal(error, self._what(plan), repair)

    async def _grant(
        self, con: PoolConnectionProxy[Any], plan: TablePlan, error: Exception, *, again: bool
    ) -> str:
        try:
            role, missing = await self._ask(con, plan, again=again)
        except Exception as second:
            return (
                f"grant the sink's role what it lacks at {self.place} ({privilege(error)}; the "
                f"lookup failed: {for_log(second)})"
            )
        if not missing:
            return f"grant role {role} what it lacks at {self.place} ({privilege(error)})"
        return f"grant {', '.join(missing)} at {self.place} to role {role}"

    def _what(self, plan: TablePlan) -> str:
        return f"PostgreSQL at {self.place} refuses every write to table {plan.table.qualified}"

    def locked(self, error: Exception, plan: TablePlan) -> UnavailableError:
        """The `UnavailableError` for a lock on the whole table. Nothing was stored."""
        made = UnavailableError(
            f"another session has locked table {plan.table.qualified} at {self.place} "
            f"({message_of(error)})"
        )
        return caused(made, error)
