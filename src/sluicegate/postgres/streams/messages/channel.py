"""The channel on which writers notify readers of new messages."""

from __future__ import annotations

from ...client.names import channel_name


def channel_of(schema: str) -> str:
    """Return the channel of a schema's log, for `LISTEN` (quoted) and `pg_notify`."""
    return channel_name("sluicegate", schema)
