"""The parts of an open consumer that the operators' views read and never change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._core.source import Source
    from .claims import Claims
    from .committing import Committer
    from .commons import Commons
    from .errands import Errands
    from .run_end import RunEnd
    from .schedule import Schedule
    from .settling import Settler
    from .workers import Workers


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects that `stats`, `explain`, `lag` and `health` read."""

    commons: Commons
    source: Source
    claims: Claims
    schedule: Schedule
    workers: Workers
    errands: Errands
    settler: Settler
    committer: Committer
    ending: RunEnd
