"""Queries and fixtures of the tests of delivery levels."""

from __future__ import annotations

from typing import Any

import pytest
from tests.spark.sql import query

WHOLE = "SELECT count(*), count(DISTINCT id) FROM events"
TABLES = """
    DROP TABLE IF EXISTS sluicegate_ledger, events, broken CASCADE;
    CREATE TABLE events (id bigint, key bigint, serial bigserial);
"""
INVERSIONS = (
    "SELECT count(*) FROM (SELECT id < lag(id) OVER (PARTITION BY key ORDER BY "
    "serial) AS bad FROM events) AS t WHERE bad"
)


def rows(spark: Any, count: int, *, partitions: int = 3) -> Any:
    """Rows of 97 keys, in as many partitions of the source."""
    return spark.range(0, count, numPartitions=partitions).selectExpr("id", "id * 7919 % 97 AS key")


@pytest.fixture
def dsn(embedded_postgres: Any) -> str:
    """A server with an empty table `events` and without a ledger."""
    query(embedded_postgres.dsn, TABLES)
    return str(embedded_postgres.dsn)
