"""The origin of a batch: its id, why and when it was sealed, and by which batcher."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from uuid import uuid4


class Reason(enum.Enum):
    """Why a batch was sealed; exactly one per batch."""

    SIZE = "size"
    BYTES = "bytes"
    TIME = "time"
    MANUAL = "manual"
    SHUTDOWN = "shutdown"
    SHUTDOWN_REQUEST = "shutdown_request"
    PRESSURE = "pressure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The common facts of a sealed batch and its derived batches. Times are monotonic seconds."""

    id: str = field(default_factory=lambda: uuid4().hex)
    reason: Reason = Reason.MANUAL
    name: str = ""
    oldest_at: float | None = None
    sealed_at: float | None = None
    tenant: object = None
    is_replay: bool = False
    """Whether the items are replayed dead letters: those that fail again write no new letter."""
