"""The check of the schema: its problems, and the statements that repair them.

1. It changes nothing, and needs only the right to read the catalogs. Objects that the role may not
   read are not checked, which a note reports.
2. The objects are compared with those that the migrations create: by name, functions by text.
"""

# ruff: noqa: S608  # names in statements are quoted

from __future__ import annotations

from typing import TYPE_CHECKING

from ..client.names import literal
from ..client.statements import is_pooled
from .contents import problems_of_contents
from .installation import free_class, taken_classes
from .objects import SchemaProblem, lacking, problems_of_objects, read_catalog, replaced_class
from .opened import check_schema_name, found_schema, migrations, newest, read_schema
from .rights import options_of

if TYPE_CHECKING:
    from .objects import Catalog
    from .opened import AnyConnection, LogSchema
    from .rights import Rights, Roles

_IN_RECOVERY = "SELECT pg_is_in_recovery()"
_VERSIONS = "SELECT version, name, checksum, library FROM {schema}.migration ORDER BY version"
_GRANTEES = "SELECT role::text, rights FROM {schema}.grantee ORDER BY 1, 2"
_KNOWN = "SELECT rolname::text FROM pg_roles WHERE rolname = ANY($1::text[])"


async def check(
    con: AnyConnection, name: str, *, roles: Roles | None = None
) -> list[SchemaProblem]:
    """Return the problems of the schema, worst first; none if it is as this release installs it.

    The rights of `roles` are checked in addition to those of the roles of an installation. Suspends
    for some round trips.
    """
    check_schema_name(name)
    async with con.transaction(isolation="read_committed", readonly=True):
        problems = [*await _problems_of_server(con)]
        found = await found_schema(con, name)
        if not found.is_log:
            what = "holds no log" if found.exists else "does not exist"
            text = f"the schema {name} {what} in the database {found.database}"
            advice = f"run `sluicegate pg install DSN --schema {name}`"
            return [SchemaProblem("schema-missing", text, advice=advice), *problems]
        if not found.may_read:
            text = f"the role {found.role} may not read the log {name}, so little was checked"
            advice = (
                f"run `sluicegate pg install DSN --schema {name}` as the log's owner, with "
                f"{options_of(found.role)}"
            )
            return [SchemaProblem("no-rights", text, advice=advice), *problems]
        schema = await read_schema(con, name)
        catalog = await read_catalog(con, name)
        problems += await _problems_of_versions(con, schema)
        if schema.version == newest():
            problems += await _problems_of_class(con, schema)
            problems += problems_of_objects(schema, catalog)
            problems += await problems_of_contents(con, schema, catalog)
            problems += await _problems_of_roles(con, schema, catalog, roles or {})
    return sorted(problems, key=lambda each: each.is_note)


async def _problems_of_server(con: AnyConnection) -> list[SchemaProblem]:
    problems: list[SchemaProblem] = []
    if await con.fetchval(_IN_RECOVERY):
        text = (
            "the server is a standby, on which nothing can be appended and no horizon can be read"
        )
        problems.append(SchemaProblem("standby", text, advice="connect to the primary server"))
    if await is_pooled(con):
        text = (
            "the connection uses a pooler, which may lend a session for only one transaction: "
            "then notifications (NOTIFY) do not arrive, and advisory locks are refused"
        )
        advice = "none if readers may poll; otherwise connect them directly to the server"
        problems.append(SchemaProblem("pooler", text, advice=advice, is_note=True))
    return problems


async def _problems_of_versions(con: AnyConnection, schema: LogSchema) -> list[SchemaProblem]:
    rows = await con.fetch(_VERSIONS.format(schema=schema.sql))
    ours = {each.version: each for each in migrations()}
    problems: list[SchemaProblem] = []
    if schema.version < newest():
        text = f"the log is at version {schema.version}, this release needs {newest()}"
        advice = f"run `sluicegate pg upgrade DSN --schema {schema.name}`"
        problems.append(SchemaProblem("older", text, advice=advice))
    if schema.version > newest():
        text = f"the log is at version {schema.version}, this release knows {newest()} only"
        advice = f"install Sluicegate {rows[-1]['library']} or a later one"
        problems.append(SchemaProblem("newer", text, advice=advice))
    for row in rows:
        own = ours.get(row["version"])
        if own is None or own.checksum == row["checksum"]:
            continue
        text = (
            f"migration {own.version} ({own.name}) was applied with a text that differs from this "
            f"release's, by Sluicegate {row['library']}"
        )
        repair = (
            f"UPDATE {schema.sql}.migration SET checksum = '{own.checksum}' "
            f"WHERE version = {own.version}"
        )
        advice = "repair the other problems first; if there are none, only the note is wrong"
        problems.append(SchemaProblem("checksum", text, (repair,), advice))
    return problems


async def _problems_of_class(con: AnyConnection, schema: LogSchema) -> list[SchemaProblem]:
    classes = await taken_classes(con)
    own = classes.pop(schema.name, None)
    others = sorted(name for name, taken in classes.items() if taken == own)
    if own is None or not others:
        return []
    new = await free_class(con, schema.name)
    text = (
        f"the log has the advisory class {own} in common with {', '.join(others)}: a transaction "
        "that appends to both is not waited for"
    )
    repair = (
        *replaced_class(schema, new),
        f"UPDATE {schema.sql}.meta SET value = '{new}' WHERE name = 'class'",
    )
    return [SchemaProblem("class-shared", text, ("BEGIN", *repair, "COMMIT"))]


async def _problems_of_roles(
    con: AnyConnection, schema: LogSchema, catalog: Catalog, roles: Roles
) -> list[SchemaProblem]:
    wanted: dict[Rights, set[str]] = {right: {*names} for right, names in roles.items()}
    if ("table", "grantee") in catalog.objects and await con.fetchval(
        "SELECT has_table_privilege($1::text::regclass, 'SELECT')", f"{schema.sql}.grantee"
    ):
        for row in await con.fetch(_GRANTEES.format(schema=schema.sql)):
            wanted.setdefault(row["rights"], set()).add(row["role"])
    names = sorted({name for given in wanted.values() for name in given})
    known: set[str] = {row["rolname"] for row in await con.fetch(_KNOWN, names)}
    problems = [_absent_role(schema, role) for role in names if role not in known]
    there: Roles = {right: given & known for right, given in wanted.items()}
    for (role, right), statements in (await lacking(con, schema.name, there)).items():
        text = f"the role {role} lacks rights that it needs to {right}"
        problems.append(SchemaProblem("role-rights", text, tuple(statements)))
    return problems


def _absent_role(schema: LogSchema, role: str) -> SchemaProblem:
    text = f"the role {role}, which was given rights on the log, does not exist"
    repair = f"DELETE FROM {schema.sql}.grantee WHERE role = {literal(role)}"
    advice = "create the role, or remove its entry"
    return SchemaProblem("role-missing", text, (repair,), advice, is_note=True)
