"""Observers of the queues of a schema."""

from __future__ import annotations

from .monitor_observer import MonitorObserver


class QueueObserver(MonitorObserver):
    """Base class of `QueueMonitor` observers; all methods do nothing. Override what you need.

    Callbacks run in the monitor's loop and must return quickly. An exception is logged, and the
    monitor continues.
    """
