"""The cases on NATS."""

from __future__ import annotations

from . import jetstream, sink

CASES = (jetstream.CASE, sink.CASE)
