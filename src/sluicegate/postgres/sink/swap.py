"""Replacement of a table by a new one, in the caller's transaction.

1. The new table is created `LIKE ... INCLUDING ALL`, filled, and renamed after the old one is
   dropped. Only dropping and renaming block readers; until the commit they see the old rows, and
   afterwards the new ones.
2. Properties that `LIKE` omits are transferred: owner, privileges, comment, storage parameters,
   foreign keys to other tables, sequences with their position, names of indexes, replica identity.
   Default privileges of the creating role are revoked.
3. Anything that would break or be lost silently is refused: views and foreign keys that reference
   the table, triggers, rules, row security, publications, partitions and inheritance. The old table
   is dropped without `CASCADE`, so any other dependent object aborts the transaction.
4. Rows that other sessions write into the old table until then are lost with it. If a concurrent
   transaction with a single snapshot (`REPEATABLE READ`) began earlier and has not yet read the
   table, it finds the new table empty, because its rows are too new for the snapshot.
"""

# ruff: noqa: S608  # text is put into statements here and nowhere else: names by `quoted`

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..._core.checks import bad
from ..client.names import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from asyncpg import Record
    from asyncpg.pool import PoolConnectionProxy

    from ..._core.staging import Epoch
    from .table import Table

_OBSTACLES = """
    SELECT 'is not a plain table' FROM pg_class WHERE oid = $1::text::regclass AND (relkind <> 'r' OR relispartition)
    UNION ALL SELECT 'has tables that inherit from it, or inherits itself' FROM pg_inherits WHERE $1::text::regclass IN (inhrelid, inhparent)
    UNION ALL SELECT 'has the view ' || r.ev_class::regclass::text FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
        WHERE d.classid = 'pg_rewrite'::regclass AND d.refobjid = $1::text::regclass AND r.ev_class <> $1::text::regclass
    UNION ALL SELECT 'has the rule ' || rulename FROM pg_rewrite WHERE ev_class = $1::text::regclass
    UNION ALL SELECT 'has the trigger ' || tgname FROM pg_trigger WHERE tgrelid = $1::text::regclass AND NOT tgisinternal
    UNION ALL SELECT 'is referenced by the foreign key ' || conname || ' of ' || conrelid::regclass::text
        FROM pg_constraint WHERE contype = 'f' AND confrelid = $1::text::regclass
    UNION ALL SELECT 'has row security' FROM pg_class WHERE oid = $1::text::regclass AND relrowsecurity
    UNION ALL SELECT 'has the policy ' || polname FROM pg_policy WHERE polrelid = $1::text::regclass
    UNION ALL SELECT 'is in the publication ' || p.pubname FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
        JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename WHERE c.oid = $1::text::regclass
"""
_FOREIGN_KEYS = """
    SELECT conname, pg_get_constraintdef(oid) AS body FROM pg_constraint
    WHERE conrelid = $1::text::regclass AND contype = 'f' ORDER BY conname
"""
_INDEXES = """
    SELECT c.oid::regclass::text AS path, c.relname, pg_get_indexdef(c.oid) AS body
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = $1::text::regclass ORDER BY c.oid
"""
_SEQUENCES = """
    SELECT a.attname, s.oid::regclass::text AS path, s.relname, d.deptype = 'i' AS is_identity
    FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
    JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
    WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = $1::text::regclass AND d.deptype IN ('a', 'i')
    ORDER BY a.attnum
"""
_GRANTS = """
    SELECT privilege_type || coalesce(' (' || quote_ident(attname) || ')', '') AS privilege,
        CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END AS grantee, is_grantable
    FROM (
        SELECT NULL::name AS attname, (aclexplode(relacl)).* FROM pg_class WHERE oid = $1::text::regclass
        UNION ALL SELECT attname, (aclexplode(attacl)).* FROM pg_attribute WHERE attrelid = $1::text::regclass AND attacl IS NOT NULL
    ) AS given
"""
_FACTS = """
    SELECT pg_get_userbyid(relowner) AS owner, relowner = (SELECT oid FROM pg_roles WHERE rolname = current_user) AS is_own,
        relpersistence = 'u' AS is_unlogged, array_to_string(reloptions, ', ') AS options, relacl IS NOT NULL AS has_grants,
        quote_literal(obj_description(oid, 'pg_class')) AS comment,
        (SELECT spcname FROM pg_tablespace t WHERE t.oid = c.reltablespace) AS tablespace,
        CASE relreplident WHEN 'f' THEN 'FULL' WHEN 'n' THEN 'NOTHING' WHEN 'i' THEN (
            SELECT 'USING INDEX ' || quote_ident(relname) FROM pg_index i JOIN pg_class r ON r.oid = i.indexrelid
            WHERE i.indrelid = c.oid AND i.indisreplident
        ) END AS identity
    FROM pg_class c WHERE oid = $1::text::regclass
"""

_RIGHTS = """
    SELECT me.name AS role, array_remove(ARRAY[
        CASE WHEN NOT has_schema_privilege(n.oid, 'CREATE') THEN 'CREATE on schema ' || quote_ident(nspname) || ' to ' || me.name END,
        CASE WHEN NOT has_table_privilege(c.oid, 'SELECT') THEN 'SELECT on ' || c.oid::regclass || ' to ' || me.name END,
        CASE WHEN $2 = 'partition' AND NOT has_table_privilege(c.oid, 'DELETE') THEN 'DELETE on ' || c.oid::regclass || ' to ' || me.name END,
        CASE WHEN $2 = 'table' AND NOT pg_has_role(relowner, 'USAGE') THEN 'role ' || me.owner || ', the owner of the table, to ' || me.name END,
        CASE WHEN $2 = 'table' AND current_setting('is_superuser') = 'off' AND NOT has_schema_privilege(relowner, n.oid, 'CREATE')
            THEN 'CREATE on schema ' || quote_ident(nspname) || ' to ' || me.owner END
    ] || ARRAY(
        SELECT DISTINCT 'REFERENCES on ' || confrelid::regclass || ' to ' || me.name FROM pg_constraint
        WHERE $2 = 'table' AND conrelid = c.oid AND contype = 'f' AND NOT has_table_privilege(confrelid, 'REFERENCES')
    ), NULL) AS missing
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
        LATERAL (SELECT quote_ident(current_user) AS name, quote_ident(pg_get_userbyid(relowner)) AS owner) AS me
    WHERE c.oid = $1::text::regclass
"""


async def check_rights(
    con: PoolConnectionProxy[Any], table: Table, epoch: Epoch, place: str
) -> None:
    """Raise `ConfigError` if the role lacks a right with which the epoch is staged and published.

    The rights of every write were checked when the table was opened.
    """
    kind = "partition" if epoch.partition else "table" if epoch.overwrite else "append"
    found = await con.fetchrow(_RIGHTS, table.qualified, kind)
    if found is not None and (missing := found["missing"]):
        rule = (
            f"needs additional tables in the schema of {table.qualified}, and rights that role "
            f"{found['role']} lacks; at {place} grant {', '.join(missing)}"
        )
        raise bad("delivery", "atomic", rule)


async def check_overwrite(con: PoolConnectionProxy[Any], table: Table) -> None:
    """Raise `ConfigError` if a new table cannot replace this one."""
    found = [row[0] for row in await con.fetch(_OBSTACLES, table.qualified)]
    if found:
        rule = (
            f"a new table would replace {table.qualified}, which {'; '.join(found)}: that would be "
            "lost or would break. Use mode='append', or replace rows by partition="
        )
        raise bad("mode", "overwrite", rule)


@dataclass(frozen=True, slots=True)
class Swap:
    """The replacement of one table."""

    old: Table
    table: Table
    """The new table."""
    oid: int = 0
    """The oid of the old table."""

    @classmethod
    async def begin(cls, con: PoolConnectionProxy[Any], old: Table) -> Swap:
        """Create the new table. Raises `ConfigError` if it cannot replace the old one."""
        await check_overwrite(con, old)
        swap = cls(old, replace(old, name=f"sluicegate_new_{uuid4().hex}"))
        await _create(con, swap)
        return replace(
            swap, oid=await con.fetchval("SELECT $1::text::regclass::oid", old.qualified)
        )

    async def end(self, con: PoolConnectionProxy[Any]) -> None:
        """Replace the old table with the filled new one."""
        facts = await con.fetchrow(_FACTS, self.old.qualified)
        assert facts is not None
        for row in await con.fetch(_FOREIGN_KEYS, self.old.qualified):
            await con.execute(
                f"ALTER TABLE {self.table.qualified} ADD CONSTRAINT {quoted(row['conname'])} "
                f"{row['body']}"
            )
        await self._carry_over(con, facts)
        old_indexes, new_indexes = await self.both(con, _INDEXES)
        old_sequences, new_sequences = await self.both(con, _SEQUENCES)
        for row in old_sequences:
            if not row["is_identity"]:
                await con.execute(
                    f"ALTER SEQUENCE {row['path']} OWNED BY "
                    f"{self.table.qualified}.{quoted(row['attname'])}"
                )
        await con.execute(f"DROP TABLE {self.old.qualified}")
        await con.execute(f"ALTER TABLE {self.table.qualified} RENAME TO {quoted(self.old.name)}")
        for old, new in _pairs(old_indexes, new_indexes, _definition):
            await con.execute(f"ALTER INDEX {new['path']} RENAME TO {quoted(old['relname'])}")
        for old, new in _pairs(old_sequences, new_sequences, lambda row: row["attname"]):
            await con.execute(f"ALTER SEQUENCE {new['path']} RENAME TO {quoted(old['relname'])}")
        if facts["identity"] is not None:
            await con.execute(
                f"ALTER TABLE {self.old.qualified} REPLICA IDENTITY {facts['identity']}"
            )

    async def _carry_over(self, con: PoolConnectionProxy[Any], facts: Record) -> None:
        if facts["comment"] is not None:
            await con.execute(f"COMMENT ON TABLE {self.table.qualified} IS {facts['comment']}")
        old, new = await self.both(con, _GRANTS)
        if facts["has_grants"] or new:
            for grantee in {row["grantee"] for row in new} | {"CURRENT_USER"}:
                await con.execute(f"REVOKE ALL ON {self.table.qualified} FROM {grantee}")
        if new and not facts["has_grants"]:
            # the new table has default privileges, the old one had only the owner's
            await con.execute(f"GRANT ALL ON {self.table.qualified} TO CURRENT_USER")
        for row in old:
            further = " WITH GRANT OPTION" if row["is_grantable"] else ""
            await con.execute(
                f"GRANT {row['privilege']} ON {self.table.qualified} TO {row['grantee']}{further}"
            )
        if not facts["is_own"]:
            await con.execute(
                f"ALTER TABLE {self.table.qualified} OWNER TO {quoted(facts['owner'])}"
            )

    async def both(
        self, con: PoolConnectionProxy[Any], query: str
    ) -> tuple[list[Record], list[Record]]:
        """Query both the old and the new table."""
        old = await con.fetch(query, self.old.qualified)
        return old, await con.fetch(query, self.table.qualified)


async def _create(con: PoolConnectionProxy[Any], swap: Swap) -> None:
    facts = await con.fetchrow(_FACTS, swap.old.qualified)
    assert facts is not None
    unlogged = "UNLOGGED " if facts["is_unlogged"] else ""
    options = f" WITH ({facts['options']})" if facts["options"] else ""
    place = f" TABLESPACE {quoted(facts['tablespace'])}" if facts["tablespace"] else ""
    await con.execute(
        f"CREATE {unlogged}TABLE {swap.table.qualified} (LIKE {swap.old.qualified} "
        f"INCLUDING ALL){options}{place}"
    )
    old, new = await swap.both(con, _SEQUENCES)
    made = {row["attname"]: row for row in new}
    for row in old:
        if row["is_identity"]:
            position = (
                f"SELECT setval($1::text::regclass, last_value, is_called) FROM {row['path']}"
            )
            await con.execute(position, made[row["attname"]]["path"])


def _definition(index: Record) -> tuple[str, str]:
    """An index definition without the names of the index and its table."""
    kind, _, rest = index["body"].partition(" INDEX ")
    return kind, rest.partition(" USING ")[2]


def _pairs(
    old: Iterable[Record], new: Iterable[Record], same: Callable[[Record], object]
) -> Iterator[tuple[Record, Record]]:
    """Pairs of equal objects, each used once."""
    left = [*new]
    for row in old:
        match = next((other for other in left if same(other) == same(row)), None)
        if match is not None:
            left.remove(match)
            yield row, match
