"""The cases, in the order in which they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import (
    accept,
    consumer,
    consumer_held,
    consumer_keys,
    consumer_parts,
    decorators,
    drivers,
    fed,
    growth,
    http,
    interpreters,
    kafka,
    kafka_beside,
    kafka_keys,
    kafka_parts,
    kafka_postgres,
    kafka_sink,
    keyed,
    loops,
    memory,
    postgres,
    resilience,
    shapes,
    shutdown,
    spark,
    statements,
    threads,
    waits,
    work,
)

if TYPE_CHECKING:
    from ..harness import Case

CASES: tuple[Case, ...] = (
    *work.CASES,
    accept.CASE,
    threads.CASE,
    loops.CASE,
    interpreters.CASE,
    growth.CASE,
    memory.CASE,
    memory.HELD_CASE,
    decorators.CASE,
    resilience.CASE,
    *fed.CASES,
    *keyed.CASES,
    shapes.CASE,
    waits.CASE,
    shutdown.CASE,
    postgres.CASE,
    drivers.CASE,
    *statements.CASES,
    *http.CASES,
    *spark.CASES,
    consumer.CASE,
    *consumer_keys.CASES,
    consumer_parts.CASE,
    consumer_held.CASE,
    kafka.CASE,
    kafka_keys.CASE,
    *kafka_parts.CASES,
    *kafka_beside.CASES,
    *kafka_postgres.CASES,
    kafka_sink.CASE,
)
