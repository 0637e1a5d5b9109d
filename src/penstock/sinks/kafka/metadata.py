"""Where a record was stored."""

from __future__ import annotations

from typing import NamedTuple


class RecordMetadata(NamedTuple):
    """The place of a stored record, as the detail of its receipt."""

    topic: str
    partition: int
    offset: int
    """-1 where the broker knows that it is stored, but not any more at which offset."""
