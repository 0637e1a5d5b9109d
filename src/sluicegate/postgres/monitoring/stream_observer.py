"""Observers of a log of streams."""

from __future__ import annotations

from .monitor_observer import MonitorObserver


class StreamObserver(MonitorObserver):
    """Base class of `StreamMonitor` observers; all methods do nothing. Override what you need.

    Callbacks run in the monitor's loop and must return quickly. An exception is logged, and the
    monitor continues.
    """
