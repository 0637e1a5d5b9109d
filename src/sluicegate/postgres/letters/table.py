"""The table of dead letters in PostgreSQL. Pure."""

from __future__ import annotations

COLUMNS = {
    "key": "text PRIMARY KEY",
    "item": "json NOT NULL",
    "error_type": "text NOT NULL",
    "error_class": "text NOT NULL",
    "message": "text NOT NULL",
    "attempts": "integer NOT NULL",
    "first_at": "timestamp with time zone NOT NULL",
    "last_at": "timestamp with time zone NOT NULL",
    "batcher": "text NOT NULL",
    "batch_id": "text NOT NULL",
    "tenant": "json",
    "trace_id": "text",
    "maybe_delivered": "boolean NOT NULL",
    "item_key": "text",
    "parked_behind": "boolean NOT NULL",
    "cause_type": "text NOT NULL",
    "code": "text NOT NULL",
    "item_form": "text NOT NULL",
    "number": "bigint GENERATED ALWAYS AS IDENTITY",
    "state": "text NOT NULL DEFAULT 'pending'",
    "replay": "text",
    "outcome": "text",
}
"""The definition of each column. The last four are the order of arrival, and notes of replays."""


def creation(table: str) -> str:
    """Return the statement that creates the quoted `table` unless it exists."""
    lines = ",\n".join(f"    {name} {definition}" for name, definition in COLUMNS.items())
    return f"CREATE TABLE IF NOT EXISTS {table} (\n{lines}\n)"
