"""The check of the schema: its problems, and the statements that repair them.

1. It changes nothing, and needs only the right to read the catalogs. Objects that the role may not
   read are not checked, which a note reports.
2. The objects are compared with those that the migrations create: by name, functions by text.
"""

# ruff: noqa: S608  # names in statements are quoted

from __future__ import annotations

from typing import TYPE_CHECKING

from .contents import problems_of_contents
from .installation import free_class, taken_classes
from .objects import SchemaProblem, problems_of_objects, read_catalog, replaced_class
from .opened import check_schema_name, found_schema, newest, read_schema
from .rights import options_of

if TYPE_CHECKING:
    from .opened import AnyConnection, LogSchema

_VERSIONS = "SELECT library FROM {schema}.migration ORDER BY version"


async def check(con: AnyConnection, name: str) -> list[SchemaProblem]:
    """Return the problems of the schema, worst first; none if it is as this release installs it.

    Suspends for some round trips.
    """
    check_schema_name(name)
    async with con.transaction(isolation="read_committed", readonly=True):
        found = await found_schema(con, name)
        if not found.is_log:
            what = "holds no log" if found.exists else "does not exist"
            text = f"the schema {name} {what} in the database {found.database}"
            advice = f"run `sluicegate pg install DSN --schema {name}`"
            return [SchemaProblem("schema-missing", text, advice=advice)]
        if not found.may_read:
            text = f"the role {found.role} may not read the log {name}, so little was checked"
            advice = (
                f"run `sluicegate pg install DSN --schema {name}` as the log's owner, with "
                f"{options_of(found.role)}"
            )
            return [SchemaProblem("no-rights", text, advice=advice)]
        schema = await read_schema(con, name)
        catalog = await read_catalog(con, name)
        problems = await _problems_of_versions(con, schema)
        if schema.version == newest():
            problems += await _problems_of_class(con, schema)
            problems += problems_of_objects(schema, catalog)
            problems += await problems_of_contents(con, schema, catalog)
    return sorted(problems, key=lambda each: each.is_note)


async def _problems_of_versions(con: AnyConnection, schema: LogSchema) -> list[SchemaProblem]:
    rows = await con.fetch(_VERSIONS.format(schema=schema.sql))
    problems: list[SchemaProblem] = []
    if schema.version < newest():
        text = f"the log is at version {schema.version}, this release needs {newest()}"
        advice = f"run `sluicegate pg upgrade DSN --schema {schema.name}`"
        problems.append(SchemaProblem("older", text, advice=advice))
    if schema.version > newest():
        text = f"the log is at version {schema.version}, this release knows {newest()} only"
        advice = f"install Sluicegate {rows[-1]['library']} or a later one"
        problems.append(SchemaProblem("newer", text, advice=advice))
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
