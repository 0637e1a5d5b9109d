"""Rights of roles on streams (append, read, subscribe) and queues (enqueue, work, operate). Pure.

1. A role that appends calls functions that run with the owner's rights, or inserts into all columns
   except those that the database sets: position, slot, category and time. A role that enqueues does
   the same with jobs, and cannot read payloads or places.
2. A subscriber also reads, and writes the tables of subscriptions. It cannot delete messages.
3. A worker reads the tables of queues, and changes them only through functions under its leases. It
   fires due schedules, also through a function: the job's contents are those that are stored.
4. An operator also reads them, and has its own functions. It creates and changes queues, sets
   whether ranges are automatic, writes schedules, and deletes stored ids of jobs and numbers of
   clients. Only the owner can drop a queue.
5. Migrations, retention and everything else are reserved for the owner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from ..._core import checks
from ..._core.checks import bad
from ..client.names import literal, quoted

Rights: TypeAlias = Literal["append", "read", "subscribe", "enqueue", "work", "operate"]
Roles: TypeAlias = Mapping[Rights, Collection[str]]
"""Roles by right."""
_COLUMNS = ("stream", "version", "type", "data", "metadata", "id")
_JOB_COLUMNS = (
    *("queue", "key", "payload", "headers", "due", "priority", "slot", "id", "queueing_lock"),
)


@dataclass(frozen=True, slots=True)
class Grant:
    """Privileges on one object."""

    kind: Literal["SCHEMA", "TABLE", "SEQUENCE", "FUNCTION"]
    privileges: tuple[str, ...]
    name: str = ""
    columns: tuple[str, ...] = ()

    def sql(self, schema: str, role: str) -> str:
        """Return the statement that grants them."""
        path = quoted(schema) + (f".{quoted(self.name)}" if self.name else "")
        columns = f" ({', '.join(self.columns)})" if self.columns else ""
        what = ", ".join(f"{privilege}{columns}" for privilege in self.privileges)
        return f"GRANT {what} ON {self.kind} {path} TO {quoted(role)}"


def _functions(*names: str) -> tuple[Grant, ...]:
    return tuple(Grant("FUNCTION", ("EXECUTE",), name) for name in names)


def _tables(*names: str, privileges: tuple[str, ...] = ("SELECT",)) -> tuple[Grant, ...]:
    return tuple(Grant("TABLE", privileges, name) for name in names)


_USE = (Grant("SCHEMA", ("USAGE",)), *_tables("migration", "meta"))
_READ = (
    *_USE,
    Grant("SEQUENCE", ("SELECT",), "position"),
    *_tables("message", "stream_end", "appender"),
    *_functions("horizon", "last_version", "slot_of", "is_selected"),
)
_READ_QUEUES = (
    *_USE,
    *(Grant("SEQUENCE", ("SELECT",), each) for each in ("job_place", "job_lease")),
    *_tables(
        *("queue", "job", "lane", "bell", "finished_job", "job_id", "queue_client"),
        *("queueing_lock", "ring_range", "queue_member", "queue_group", "schedule"),
    ),
    *_functions("ring_slot", "schedule_now"),
)
GRANTS: Mapping[Rights, tuple[Grant, ...]] = {
    "append": (
        *_USE,
        Grant("SEQUENCE", ("USAGE", "SELECT"), "position"),
        Grant("TABLE", ("INSERT",), "message", _COLUMNS),
        *_functions("append", "append_new", "append_each", "next_position", "slot_of"),
    ),
    "read": _READ,
    "subscribe": (
        *_READ,
        *_tables(
            "subscription",
            "subscription_slot",
            "subscription_member",
            "subscription_skip",
            "parked",
            privileges=("SELECT", "INSERT", "UPDATE", "DELETE"),
        ),
        *_functions("live_members", "reset_subscription", "skip_message", "delete_subscription"),
    ),
    "enqueue": (
        *_USE,
        Grant("SEQUENCE", ("USAGE",), "job_place"),
        Grant("TABLE", ("INSERT",), "job", _JOB_COLUMNS),
        *_tables("queue"),
        *_functions("enqueue", "ring_slot"),
    ),
    "work": (
        *_READ_QUEUES,
        *_functions("claim_jobs", "settle_jobs", "extend_leases"),
        *_functions("seen_consumer", "left_consumer", "balance_ranges", "fire_schedule"),
    ),
    "operate": (
        *_READ_QUEUES,
        *_tables("queue", "queue_group", privileges=("INSERT", "UPDATE")),
        *_tables("schedule", privileges=("INSERT", "UPDATE", "DELETE")),
        *_tables("job_id", "queue_client", privileges=("DELETE",)),
        *_functions("resume_lane", "park_lane", "redrive_jobs"),
        *_functions("cancel_jobs", "retry_jobs", "run_schedule"),
        *_functions("purge_finished", "purge_waiting", "assign_ranges", "ring_again"),
    ),
}


def checked_roles(**roles: object) -> dict[Rights, tuple[str, ...]]:
    """Check the roles by right, each a name or a collection of names. Raises `ConfigError`."""
    found: dict[Rights, tuple[str, ...]] = {}
    for right, given in roles.items():
        names = (given,) if isinstance(given, str) else given
        if not isinstance(names, Collection) or isinstance(names, (bytes, Mapping)):
            raise bad(right, given, "must be the name of a role, or several in a list")
        found[cast("Rights", right)] = tuple(
            checks.text(right, cast("str", name)) for name in cast("Collection[object]", names)
        )
    return found


def options_of(role: str) -> str:
    """Return the options of `sluicegate pg install` that grant a role rights, for messages."""
    *others, last = GRANTS
    return f"{', '.join(f'--{right}' for right in others)} or --{last} {role}"


def grants_for(schema: str, roles: Roles) -> list[str]:
    """Return the statements that grant roles their rights, and record them for later versions."""
    statements: list[str] = []
    for right, names in roles.items():
        for role in names:
            statements += [grant.sql(schema, role) for grant in GRANTS[right]]
            statements.append(_remember(schema, role, right))
    return statements


def _remember(schema: str, role: str, right: Rights) -> str:
    values = f"{literal(role)}, {literal(right)}"
    return f"INSERT INTO {quoted(schema)}.grantee VALUES ({values}) ON CONFLICT DO NOTHING"  # noqa: S608  # literals
