"""Checks of the schema's contents: the sequence of streams, and the positions of subscriptions.

A partly restored dump may contain rows without the sequence, or positions of a later state of the
log.
"""

# ruff: noqa: S608  # names in statements are quoted

from __future__ import annotations

from typing import TYPE_CHECKING

from ..client.names import literal
from .problems import SchemaProblem
from .queue_contents import QUEUES, problems_of_queues

if TYPE_CHECKING:
    from .catalog import Catalog
    from .opened import AnyConnection, LogSchema

_READABLE = """
SELECT bool_and(has_table_privilege(oid, 'SELECT')) FROM pg_class
WHERE relnamespace = $1::text::regnamespace AND relname = ANY($2::text[])
"""
_LAST = """
SELECT coalesce((SELECT max(position) FROM {schema}.message), 0) AS stored,
  (SELECT last_value - (NOT is_called)::int FROM {schema}.position) AS last
"""
_AHEAD = """
SELECT name, max(position) AS position FROM {schema}.subscription_slot WHERE position > $1
GROUP BY name ORDER BY name
"""
_LOG = ("message", "position")
_SLOTS = "subscription_slot"


async def problems_of_contents(
    con: AnyConnection, schema: LogSchema, catalog: Catalog
) -> list[SchemaProblem]:
    """Return the problems of sequences, of stored positions, and of jobs that no claim finds."""
    here = {name for _, name in catalog.objects}
    problems: list[SchemaProblem] = []
    unread: list[str] = []
    for things, relations, find in (
        ("messages", _LOG, _problems_of_log),
        ("jobs", QUEUES, problems_of_queues),
    ):
        if not here.issuperset(relations):
            continue
        if await con.fetchval(_READABLE, schema.sql, [*relations]):
            problems += await find(con, schema)
        else:
            unread.append(things)
    if unread:
        text = (
            f"the role may not read {' and '.join(unread)}, so neither they nor their sequences "
            "were checked"
        )
        problems.append(SchemaProblem("not-readable", text, is_note=True))
    return problems


async def _problems_of_log(con: AnyConnection, schema: LogSchema) -> list[SchemaProblem]:
    row = await con.fetchrow(_LAST.format(schema=schema.sql))
    assert row is not None  # always one row
    problems = [_behind(schema, row["last"], row["stored"])] if row["last"] < row["stored"] else []
    if await con.fetchval(_READABLE, schema.sql, [_SLOTS]):
        last = max(row["last"], row["stored"])
        ahead = await con.fetch(_AHEAD.format(schema=schema.sql), last + 1)
        problems += [_ahead(schema, each["name"], each["position"], last) for each in ahead]
    return problems


def _behind(schema: LogSchema, last: int, stored: int) -> SchemaProblem:
    text = (
        f"the sequence of positions is at {last}, but there is a message at {stored}: appends "
        "fail, and readers do not see the messages after it"
    )
    table, sequence = f"{schema.sql}.message", f"{schema.sql}.position"
    repair = (
        "BEGIN",
        f"LOCK TABLE {table} IN EXCLUSIVE MODE",
        (
            f"SELECT setval('{sequence}', greatest(last_value, (SELECT max(position) FROM {table}))) "
            f"FROM {sequence}"
        ),
        "COMMIT",
    )
    return SchemaProblem("sequence-behind", text, repair)


def _ahead(schema: LogSchema, name: str, position: int, last: int) -> SchemaProblem:
    text = (
        f"the subscription {name!r} is at position {position}, but the last position of the log is "
        f"{last}: messages were lost, for example because an older database was restored, and it "
        "would skip as many new messages"
    )
    only = f"WHERE name = {literal(name)}"
    repair = (
        "BEGIN",
        (
            f"UPDATE {schema.sql}.subscription SET earlier = ARRAY(SELECT e FROM unnest(earlier) e "
            f"WHERE e <= {last}) {only}"
        ),
        (
            f"UPDATE {schema.sql}.subscription_slot SET position = {last + 1}, metadata = '' "
            f"{only} AND position > {last + 1}"
        ),
        "COMMIT",
    )
    advice = "stop its instances first; it then continues with new messages"
    return SchemaProblem("subscription-ahead", text, repair, advice)
