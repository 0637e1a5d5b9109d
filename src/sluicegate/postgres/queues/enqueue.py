"""Jobs to enqueue: their parts, checked before sending, and the call of the SQL function `enqueue`.

Columns are arrays of text and whole numbers, so that codecs of a connection cannot change them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from ..._core.checks import bad
from ..client.errors import sqlstate
from ..client.names import channel_name, quoted
from ..records.access import NO_RIGHT
from ..records.values import RecordColumns, mapping_text, name_text
from .ring import need_slots

if TYPE_CHECKING:
    from uuid import UUID

    from ..._core.trace_context import TraceHeaders
    from ..schema.opened import AnyConnection
    from .ring import SlotFunction


JobState: TypeAlias = Literal["new", "known", "locked"]
NEW: JobState = "new"
KNOWN: JobState = "known"
LOCKED: JobState = "locked"

LONGEST_KEY = 1000
"""Maximum size of a key or a queueing lock in bytes, since they are part of an index."""
LONGEST_QUEUE = 200
LONGEST_PAYLOAD = 255 << 20
"""Below the server's limit for the contents of a `jsonb`, in characters of JSON."""
LOWEST_PRIORITY, HIGHEST_PRIORITY = -(1 << 15), (1 << 15) - 1
_NUMBERS = 1 << 128
NO_QUEUE = "PS010"
FULL = "PS011"
NO_SLOT = "PS012"
"""SQLSTATEs of the schema's functions, as are the two above."""
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


class Enqueued(NamedTuple):
    """The result for one job: enqueued or omitted."""

    place: int | None
    """Its place in the queue (places have gaps); `None` for an omitted job."""
    id: UUID | None
    state: JobState
    """`"new"`: enqueued. `"known"`: omitted because a job with the same id, or the same number
    of its client, was enqueued before. `"locked"`: omitted because a job with the same queueing
    lock is waiting.
    """

    @property
    def is_new(self) -> bool:
        """Whether it was enqueued."""
        return self.state == NEW


@dataclass(slots=True)
class JobColumns(RecordColumns):
    """Jobs to enqueue, as parallel columns."""

    keys: list[str | None] = field(default_factory=list["str | None"])
    payloads: list[str] = field(default_factory=list[str])
    headers: list[str | None] = field(default_factory=list["str | None"])
    due: list[str | None] = field(default_factory=list["str | None"])
    priorities: list[int | None] = field(default_factory=list["int | None"])
    slots: list[int | None] = field(default_factory=list["int | None"])
    ids: list[str] = field(default_factory=list[str])
    locks: list[str | None] = field(default_factory=list["str | None"])

    @property
    def values(self) -> tuple[list[Any] | None, ...]:
        """Return the parameters of the statement, `None` for an optional column without values."""
        return (
            self.keys,
            self.payloads,
            *(
                None if all(each is None for each in column) else column
                for column in self._optional
            ),
        )

    @property
    def _optional(self) -> tuple[list[Any], ...]:
        return self.headers, self.due, self.priorities, self.slots, self.ids, self.locks


def queue_name(value: object) -> str:
    """Check the name of a queue. Raises `ConfigError`."""
    name = name_text("queue", value)
    if len(name.encode()) > LONGEST_QUEUE:
        raise bad("queue", name, f"must be at most {LONGEST_QUEUE} bytes long in UTF-8")
    return name


def job_key(value: object) -> str | None:
    """Return the text of a key: text, or a whole number below 2^128. Raises `ConfigError`."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < _NUMBERS:
            raise bad("key", value, "must be text, a whole number from 0 to 2^128 - 1, or None")
        return str(value)
    return _index_text("key", value)


def queueing_lock(value: object) -> str | None:
    """Check that the value is text or `None`. Raises `ConfigError`."""
    return None if value is None else _index_text("queueing_lock", value)


def _index_text(name: str, value: object) -> str:
    text = name_text(name, value)
    if len(text.encode()) > LONGEST_KEY:
        raise bad(name, text[:40] + "...", f"must be at most {LONGEST_KEY} bytes long in UTF-8")
    return text


def headers_text(value: object, trace: TraceHeaders) -> str | None:
    """Return a mapping by name as JSON, with the trace context. Raises `ConfigError`."""
    if value is None and not trace:
        return None
    return mapping_text("headers", value, trace)


def due_text(value: object) -> str | None:
    """Return an aware time as text that is independent of settings. Raises `ConfigError`."""
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise bad("due", value, "must be a datetime with its zone, or None")
    try:
        return value.astimezone(UTC).isoformat()
    except OverflowError:
        raise bad("due", value, "must be in the years 1 to 9999 in UTC") from None


def job_priority(value: object) -> int | None:
    """Check that the value is a 16-bit whole number (higher comes first). Raises `ConfigError`."""
    if value is None:
        return None
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or not LOWEST_PRIORITY <= cast("int", value) <= HIGHEST_PRIORITY:
        rule = f"must be a whole number from {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}, or None"
        raise bad("priority", value, rule)
    return int(cast("int", value))


# ruff: noqa: S608  # names in statements are quoted


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
