"""Objects shared by the parts of one open source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...._core.clock import Clock
    from ...._core.source import Troubles
    from ...._core.subscriptions import SubscriptionLocks, SubscriptionState
    from .options import StreamOptions


@dataclass(frozen=True, slots=True)
class StreamParts:
    """Options, providers, the troubles of the source and the clock."""

    options: StreamOptions
    state: SubscriptionState
    locks: SubscriptionLocks
    troubles: Troubles
    clock: Clock
