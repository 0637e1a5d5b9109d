"""The SQL function `enqueue`: its statement, and the properties of a queue that producers need.

Columns are arrays of text and whole numbers, so that codecs of a connection cannot change them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.checks import bad
from ..client.errors import sqlstate
from ..client.names import channel_name, quoted
from ..records.access import NO_RIGHT
from .ring import need_slots

if TYPE_CHECKING:
    from ..schema.opened import AnyConnection
    from .ring import SlotFunction


# ruff: noqa: S608  # names in statements are quoted


NO_QUEUE = "PS010"
FULL = "PS011"
NO_SLOT = "PS012"

_STATEMENT = (
    "SELECT r_state, r_place FROM {schema}.enqueue(CAST($1 AS text), CAST($2 AS text[]), "
    "CAST($3 AS text[]), CAST($4 AS text[]), CAST(CAST($5 AS text[]) AS timestamptz[]), "
    "CAST($6 AS int[]), CAST($7 AS int[]), CAST($8 AS text[]), CAST($9 AS text[])) ORDER BY r_n"
)
_QUEUE = """
SELECT q.slot_function, (
    SELECT bool_and(has_function_privilege(p.oid, 'EXECUTE')) FROM pg_proc p
    JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = $2 AND p.proname = 'enqueue'
  ) AS may_enqueue
FROM {schema}.queue q WHERE q.name = $1
"""


def enqueue_statement(schema: str) -> str:
    """Return the statement; its parameters are the queue's name and `JobColumns.values`."""
    return _STATEMENT.format(schema=quoted(schema))


def max_depth_query(schema: str) -> str:
    """Return the query for the maximum number of jobs in a queue."""
    return f"SELECT max_depth FROM {quoted(schema)}.queue WHERE name = $1"


def create_command(schema: str, queue: str) -> str:
    """Return the command that creates a queue."""
    return f"sluicegate queue create DSN {queue} --schema {schema}"


async def opened_queue(con: AnyConnection, schema: str, queue: str) -> SlotFunction:
    """Return the slot function of a queue. Suspends for one round trip.

    Raises `ConfigError`, with the command that repairs it, if the queue is missing or the role may
    not enqueue; `MissingExtra` if this process cannot compute the function.
    """
    try:
        row = await con.fetchrow(_QUEUE.format(schema=quoted(schema)), queue, schema)
    except Exception as error:
        if sqlstate(error) == NO_RIGHT:
            raise _no_right(schema) from error
        raise
    if row is None:
        command = create_command(schema, queue)
        raise bad("queue", queue, f"does not exist in the schema {schema!r}; run `{command}`")
    if not row["may_enqueue"]:
        raise _no_right(schema)
    return need_slots(row["slot_function"])


def _no_right(schema: str) -> Exception:
    command = f"sluicegate pg install DSN --schema {schema} --enqueue ROLE"
    return bad("schema", schema, f"the role may not enqueue in it; run `{command}`")


def queue_channel(schema: str) -> str:
    """Return the channel of a schema's queues, for `LISTEN` (quoted) and `pg_notify`."""
    return channel_name("sluicegate-queue", schema)
