"""What the parts of one open source share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..._core.clock import Signal
from ..waking import CountedSignal

if TYPE_CHECKING:
    from pathlib import Path

    from ..._core.clock import Clock
    from ..._core.source import ClaimHost
    from ..._core.subscriptions import SubscriptionLocks
    from .options import FileOptions


@dataclass(frozen=True, slots=True)
class FileParts:
    """Options, the directory, the provider's locks, the host, the clock and the signals."""

    options: FileOptions
    root: Path
    locks: SubscriptionLocks | None
    host: ClaimHost
    clock: Clock
    news: Signal = field(default_factory=Signal)
    """Rows to deliver, or the end."""
    wake: CountedSignal = field(default_factory=CountedSignal)
    """Something for the next round of the tasks."""
