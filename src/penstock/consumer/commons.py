"""What all parts of an open consumer share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .counts import Counters
from .signals import Signals

if TYPE_CHECKING:
    from .._core.clock import Clock


@dataclass(frozen=True, slots=True)
class Commons:
    """The consumer's name, its clock, its counts and its signals."""

    name: str
    clock: Clock
    counts: Counters = field(default_factory=Counters)
    signals: Signals = field(default_factory=Signals)
