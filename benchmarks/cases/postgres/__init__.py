"""The cases on PostgreSQL."""

from __future__ import annotations

from . import drivers, flights, queue_keys, queues, statements, streams, subscriptions

CASES = (
    flights.CASE,
    drivers.CASE,
    *statements.CASES,
    streams.CASE,
    subscriptions.CASE,
    *queues.CASES,
    queue_keys.CASE,
    queue_keys.PAGES,
)
