"""The channel on which writers tell consumers of new jobs."""

from __future__ import annotations

from ..names import channel_name


def queue_channel(schema: str) -> str:
    """The channel of the queues in a schema, for `LISTEN` and `pg_notify`; quote it in `LISTEN`."""
    return channel_name("penstock-queue", schema)
