"""The limits of batches, and what becomes of messages without a result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

OnMismatch = Literal["terminate", "retry"]
ON_MISMATCH: tuple[OnMismatch, ...] = ("terminate", "retry")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """When a batch is full, and when it is due before that."""

    size: int = 500
    max_wait: float = 0.2
    """Seconds; infinite without a timer."""
    max_bytes: float = math.inf
    max_per_key: float = math.inf
    one_lane: bool = False
    """Whether a batch holds the messages of one lane only."""
    on_mismatch: OnMismatch = "terminate"
