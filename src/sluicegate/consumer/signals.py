"""Signals between the tasks of a consumer."""

from __future__ import annotations

from dataclasses import dataclass, field

from .._core.clock import Signal


@dataclass(frozen=True, slots=True)
class Signals:
    """One signal per kind of event; a signal without a waiting task is not kept."""

    work: Signal = field(default_factory=Signal)
    """A message became ready, or backs off."""
    room: Signal = field(default_factory=Signal)
    """The window has room again."""
    settled: Signal = field(default_factory=Signal)
    """A turn or an errand has ended."""
    state: Signal = field(default_factory=Signal)
    """Readiness may have changed."""
    parked: Signal = field(default_factory=Signal)
    """Records of a parked key wait for the end of an older turn."""
    claims: Signal = field(default_factory=Signal)
    """A claim began or ended, was paused or resumed."""
