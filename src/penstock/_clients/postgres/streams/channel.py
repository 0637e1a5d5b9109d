"""The channel on which writers tell readers of new messages."""

from __future__ import annotations

from ..names import channel_name


def channel_of(schema: str) -> str:
    """The channel of the log in a schema, for `LISTEN` and `pg_notify`; quote it in `LISTEN`."""
    return channel_name("penstock", schema)
