"""The channel on which writers notify consumers of new jobs."""

from __future__ import annotations

from ...client.names import channel_name


def queue_channel(schema: str) -> str:
    """Return the channel of a schema's queues, for `LISTEN` (quoted) and `pg_notify`."""
    return channel_name("sluicegate-queue", schema)
