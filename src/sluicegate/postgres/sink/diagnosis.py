"""Refusals of the table, as opposed to errors of individual rows, each with its repair.

1. The table is read again before a row is blamed. A missing table, column or key is a refusal; a
   changed table results in a new plan, with which the same rows are written again.
2. A missing privilege is looked up by name (`missing_privileges`). If the lookup fails, the refusal
   stands: a row never fails permanently on a guess.
3. The server checks privileges by column if they are not granted for the whole table, so each
   column is queried. A conflict's key and a version are read, which requires SELECT.
   A column filled by a sequence requires the sequence. Sifting needs a temporary table, and
   therefore TEMPORARY on the database.
4. With row-level security, a role needs a permissive policy for each command; without one it is
   refused every row, with the code of a missing privilege.
5. The query for privileges contains its names as literals, since it also runs inside the server's
   loop over the rows (`sifting`). `CASE` keeps the planner from checking privileges on a sequence
   before it is known to be one.
"""

# ruff: noqa: S608  # text is put into statements here and nowhere else: names as literals

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..._core.classify import caused
from ..._core.errors import ConfigError, RefusedError, UnavailableError
from ..._core.logs import for_log
from ..client.errors import NO_PRIVILEGE, NOT_NULL, is_stale, message_of, sqlstate
from ..client.names import literal, quoted
from ..client.refusals import privilege, refusal, repair_of
from .encoding import by_codecs
from .table import read_table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from asyncpg.pool import PoolConnectionProxy

    from .facts import PlanFacts
    from .plan import TablePlan
    from .strategy import Target
    from .table import Table

T = TypeVar("T")
_POLICIES = {"INSERT": "a", "SELECT": "r"}
"""The commands whose policies apply to every row, and their codes in `pg_policy`. Those for UPDATE
apply only to rows that replace others.
"""

_TEMPORARY = """
        UNION ALL
        SELECT 'TEMPORARY on database ' || pg_catalog.quote_ident(pg_catalog.current_database())
        WHERE NOT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMPORARY')
"""


async def query_again(con: PoolConnectionProxy[Any], ask: Callable[[], Awaitable[T]]) -> T:
    """Run one of our own queries; repeat it once if its prepared statement was lost."""
    try:
        return await ask()
    except Exception as error:
        if not is_stale(error):
            raise
        await con.reload_schema_state()
        return await ask()


@dataclass(frozen=True, slots=True)
class Diagnosis:
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
                found = self.target.plan(table, reads_text=plan.reads_text, columns=plan.columns)
            except ConfigError as second:
                cure = "drop the rule" if table.has_rules else "restore the unique key"
                repair = f"{cure} of {self._where(plan)} ({second})"
            else:
                found = replace(found, json_types=plan.json_types)
                return await query_again(con, partial(by_codecs, con, found))
        raise refusal(error, self._what(plan), repair) from error

    async def _table(
        self, con: PoolConnectionProxy[Any], plan: TablePlan, error: Exception
    ) -> Table:
        try:
            return await query_again(
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
        gone = [quoted(name) for name in plan.columns if name not in names]
        if gone:
            return f"add column {', '.join(gone)} to {self._where(plan)} again"
        computed = [quoted(name) for name in plan.columns if table.column(name).generated]
        if computed:
            made = f"make column {', '.join(computed)} of {self._where(plan)}"
            return f"{made} writable"
        return None

    def _where(self, plan: TablePlan) -> str:
        return f"table {plan.table.qualified} at {self.place}"

    async def is_unprivileged(
        self, con: PoolConnectionProxy[Any], plan: TablePlan, *, again: bool
    ) -> bool:
        """Whether the role lacks a privilege. Raises the server's errors."""
        return bool((await self._ask(con, plan, again=again))[1])

    async def _ask(
        self, con: PoolConnectionProxy[Any], plan: TablePlan, *, again: bool
    ) -> tuple[str, Sequence[str]]:
        found = await query_again(con, partial(con.fetchrow, role_and_missing(plan, again=again)))
        assert found is not None
        return found["role"], found["missing"]

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


def missing_privileges(plan: PlanFacts, *, again: bool = False, sifts: bool = True) -> str:
    """Query the missing privileges and policies, one row of text each, such as `INSERT on table
    "public"."events"`.

    With `again`, include the privileges for a write after an unknown outcome, with `sifts` those
    for sifting.
    """
    home, name = literal(plan.table.schema), literal(plan.table.name)
    rights = ", ".join(right for wanted in _wanted(plan, again=again) for right in _rights(*wanted))
    commands = [name for name, read in _wanted(plan, again=False) if read and name in _POLICIES]
    policies = ", ".join(f"('{name}', '{_POLICIES[name]}')" for name in commands)
    written = ", ".join(map(literal, plan.columns))
    table = literal(f" on table {plan.table.qualified}")
    return f"""
        WITH target AS MATERIALIZED (
            SELECT c.oid, h.oid AS home FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace h ON h.oid = c.relnamespace
            WHERE h.nspname = {home} AND c.relname = {name}
        )
        SELECT 'USAGE on schema ' || pg_catalog.quote_ident({home}) AS missing
        FROM target WHERE NOT pg_catalog.has_schema_privilege(target.home, 'USAGE')
        UNION ALL
        SELECT w.privilege || CASE WHEN count(*) = w.total THEN '' ELSE
            ' (' || pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ' ORDER BY a.attnum) || ')' END || {table}
        FROM target, (VALUES {rights}) AS w(privilege, name, total), pg_catalog.pg_attribute a
        WHERE a.attrelid = target.oid AND a.attname = w.name AND NOT a.attisdropped
            AND NOT pg_catalog.has_column_privilege(target.oid, a.attnum, w.privilege)
        GROUP BY w.privilege, w.total
        UNION ALL
        SELECT 'a policy for ' || w.command || {table}
        FROM target, (VALUES {policies}) AS w(command, code)
        WHERE pg_catalog.row_security_active(target.oid) AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_policy p WHERE p.polrelid = target.oid AND p.polpermissive AND p.polcmd IN (w.code, '*')
                AND EXISTS (SELECT FROM pg_catalog.unnest(p.polroles) AS r(oid) WHERE CASE r.oid WHEN 0 THEN true ELSE pg_catalog.pg_has_role(r.oid, 'USAGE') END)
        )
        UNION ALL
        SELECT DISTINCT 'USAGE on sequence ' || s.oid::pg_catalog.regclass::text
        FROM target JOIN pg_catalog.pg_attrdef f ON f.adrelid = target.oid
        JOIN pg_catalog.pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum AND a.attname NOT IN ({written})
        JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass AND d.objid = f.oid
            AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
        JOIN pg_catalog.pg_class s ON s.oid = d.refobjid
        WHERE CASE s.relkind WHEN 'S' THEN NOT pg_catalog.has_sequence_privilege(s.oid, 'USAGE, UPDATE') END
        {_TEMPORARY if sifts else ""}
    """


def role_and_missing(plan: PlanFacts, *, again: bool, sifts: bool = True) -> str:
    """Query the role (`role`) and the list of its missing privileges (`missing`)."""
    return (
        "SELECT pg_catalog.quote_ident(current_user) AS role, "
        f"ARRAY({missing_privileges(plan, again=again, sifts=sifts)}) AS missing"
    )


def _wanted(plan: PlanFacts, *, again: bool) -> Iterator[tuple[str, Sequence[str]]]:
    updated = plan.update_columns if plan.mode == "update" else ()
    read = {
        *(plan.target or () if plan.mode != "error" else ()),
        *([plan.version] if plan.version else ()),
    }
    if again:  # if conflicts are errors, stored rows are compared
        read.update(plan.columns if plan.mode == "error" else plan.key or ())
    yield "INSERT", plan.columns
    yield "UPDATE", updated
    yield "SELECT", sorted(read)


def _rights(privilege: str, columns: Sequence[str]) -> Iterator[str]:
    for name in columns:
        yield f"('{privilege}', {literal(name)}, {len(columns)})"
