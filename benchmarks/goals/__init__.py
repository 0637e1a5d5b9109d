"""The tables of goals, each judged by the figures of its cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import batcher, consumer, kafka, kafka_sink, pipe, postgres, spark

if TYPE_CHECKING:
    from .judging import GoalTable

TABLES: tuple[GoalTable, ...] = (
    batcher.TABLE,
    postgres.TABLE,
    spark.TABLE,
    consumer.TABLE,
    kafka.TABLE,
    pipe.TABLE,
    kafka_sink.TABLE,
)
