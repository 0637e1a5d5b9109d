"""Watching the queues of a schema."""

from __future__ import annotations

from .monitor_observer import MonitorObserver


class QueueObserver(MonitorObserver):
    """A watcher of a `QueueMonitor` that does nothing; override what you need.

    Callbacks run in the monitor's loop and must return quickly. One that raises is logged, and the
    monitor goes on.
    """
