"""The cases on Spark."""

from __future__ import annotations

from . import movers, partitions, parts, upserts, writes

CASES = (
    writes.CASE,
    upserts.CASE,
    partitions.CASE,
    parts.CASE,
    movers.CASE,
    movers.KILLED,
)
