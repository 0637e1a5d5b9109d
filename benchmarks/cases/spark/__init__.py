"""The cases on Spark."""

from __future__ import annotations

from . import partitions, upserts, writes

CASES = (writes.CASE, upserts.CASE, partitions.CASE)
