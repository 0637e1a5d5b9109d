"""Objects shared by the parts of one open source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..._core.clock import CountedSignal, Signal

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
    """Fires when there are rows to deliver, or at the end."""
    wake: CountedSignal = field(default_factory=CountedSignal)
    """Fires when the tasks should begin their next round."""
