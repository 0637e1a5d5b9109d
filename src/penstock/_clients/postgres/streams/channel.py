"""The channel on which writers tell readers of new messages."""

from __future__ import annotations

import hashlib

LONGEST = 63
"""Bytes of the longest name that PostgreSQL takes."""


def channel_of(schema: str) -> str:
    """The channel of the log in a schema, for `LISTEN` and `pg_notify`; quote it in `LISTEN`."""
    name = f"penstock:{schema}"
    if len(name.encode()) <= LONGEST:
        return name
    return f"penstock:{hashlib.sha256(schema.encode()).hexdigest()[:48]}"
