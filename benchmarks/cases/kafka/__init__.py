"""The cases on Kafka."""

from __future__ import annotations

from . import avro, beside, clients, keys, parts, pipe, pipe_parts, sink, source

CASES = (
    source.CASE,
    clients.CASE,
    keys.CASE,
    *parts.CASES,
    *beside.CASES,
    *pipe.CASES,
    pipe_parts.CASE,
    avro.CASE,
    sink.CASE,
)
