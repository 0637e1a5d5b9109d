"""Queries for the privileges that a role lacks for a sink's statements on its table.

1. The server checks privileges by column if they are not granted for the whole table, so each
   column is queried. A conflict's key, a version and returned columns are read, which requires
   SELECT. A column filled by a sequence requires the sequence.
2. Sifting needs a temporary table, and therefore TEMPORARY on the database.
3. With row-level security, a role needs a permissive policy for each command; without one it is
   refused every row, with the code of a missing privilege.
4. `CASE` keeps the planner from checking privileges on a sequence before it is known to be one.
5. The query contains its names as literals, since it also runs inside the server's loop over the
   rows (`sifting.sift`).
"""

# ruff: noqa: S608  # text is put into statements here and nowhere else: names as literals

from __future__ import annotations

from typing import TYPE_CHECKING

from ...client.names import literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .facts import PlanFacts


_POLICIES = {"INSERT": "a", "SELECT": "r"}
"""The commands whose policies apply to every row, and their codes in `pg_policy`. Those for UPDATE
apply only to rows that replace others.
"""

_TEMPORARY = """
        UNION ALL
        SELECT 'TEMPORARY on database ' || pg_catalog.quote_ident(pg_catalog.current_database())
        WHERE NOT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMPORARY')
"""


def lacking(plan: PlanFacts, *, again: bool = False, sifts: bool = True) -> str:
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


def asked(plan: PlanFacts, *, again: bool, sifts: bool = True) -> str:
    """Query the role (`role`) and the list of its missing privileges (`missing`)."""
    return (
        "SELECT pg_catalog.quote_ident(current_user) AS role, "
        f"ARRAY({lacking(plan, again=again, sifts=sifts)}) AS missing"
    )


def _wanted(plan: PlanFacts, *, again: bool) -> Iterator[tuple[str, Sequence[str]]]:
    updated = plan.update_columns if plan.mode == "update" else ()
    read = {
        *plan.returning,
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
