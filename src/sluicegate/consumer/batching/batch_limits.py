"""The limits of batches, and the treatment of messages without a result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

OnMismatch = Literal["terminate", "retry"]
ON_MISMATCH: tuple[OnMismatch, ...] = ("terminate", "retry")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The limits at which a batch is full or due."""

    size: int = 500
    max_wait: float = 0.2
    """Seconds; infinite without a time limit."""
    max_bytes: float = math.inf
    max_per_key: float = math.inf
    one_lane: bool = False
    """Whether a batch contains messages of one lane only."""
    on_mismatch: OnMismatch = "terminate"
