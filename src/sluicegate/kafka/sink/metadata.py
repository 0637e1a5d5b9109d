"""Where a record was stored."""

from __future__ import annotations

from typing import NamedTuple


class RecordMetadata(NamedTuple):
    """The place of a stored record; the details of its item's receipt."""

    topic: str
    partition: int
    offset: int
    """-1 if the broker knows that the record is stored, but no longer at which offset."""
