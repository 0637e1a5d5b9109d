"""Unusual shapes of a DataFrame: many small partitions, wide rows, large rows. Every row is compared."""

from __future__ import annotations

from hashlib import md5
from typing import Any

import pytest

pytest.importorskip("pyspark")
from tests.spark.sql import query

from sluicegate.postgres import PostgresSink, postgres_columns
from sluicegate.spark import write_dataframe


@pytest.fixture
def dsn(embedded_postgres: Any) -> str:
    """A server without the table of these tests."""
    query(embedded_postgres.dsn, "DROP TABLE IF EXISTS shapes")
    return str(embedded_postgres.dsn)


def sink(dsn: str, df: Any) -> PostgresSink:
    """A sink that creates the table."""
    columns = postgres_columns(df.schema)
    return PostgresSink(
        dsn, table="shapes", columns=columns, create_table="if_missing", pool_size=4
    )


def many(size: int) -> Any:
    """A parameter for the full size, which takes long."""
    return pytest.param(size, marks=[pytest.mark.long, pytest.mark.timeout(3600)])


@pytest.mark.parametrize("partitions", [100, many(10_000)])
@pytest.mark.parametrize("max_tasks", [None, 4])
def test_many_small_partitions(
    spark: Any, dsn: str, partitions: int, max_tasks: int | None
) -> None:
    """Three rows in each but every tenth, which is empty."""
    df = spark.range(0, 3 * partitions, numPartitions=partitions).where("id DIV 3 % 10 <> 0")
    report = write_dataframe(df, sink(dsn, df), max_tasks=max_tasks)
    expected = [(n,) for n in range(3 * partitions) if n // 3 % 10]
    assert (report.rows, report.delivered) == (len(expected), len(expected))
    assert query(dsn, "SELECT id FROM shapes ORDER BY id") == expected


@pytest.mark.parametrize("rows", [60, many(20_000)])
def test_rows_of_500_columns(spark: Any, dsn: str, rows: int) -> None:
    """Numbers, text, timestamps and NULL; few rows are parameters, many are copied."""
    kinds = ["id * {0}", "concat('v', id, '-{0}')", "if(id % 3 = 0, null, id + {0})"]
    kinds.append("timestamp_seconds(id * 500 + {0})")
    values = [f"{kinds[n % 4].format(n)} AS c{n}" for n in range(499)]
    df = spark.range(0, rows, numPartitions=2).selectExpr("id", *values)
    report = write_dataframe(df, sink(dsn, df))
    assert report.delivered == rows
    wrong = [
        f"c{n} IS DISTINCT FROM {sql}"
        for n in range(499)
        for sql in [
            (
                f"id * {n}",
                f"concat('v', id, '-{n}')",
                f"CASE WHEN id % 3 <> 0 THEN id + {n} END",
                f"to_timestamp(id * 500 + {n})",
            )[n % 4]
        ]
    ]
    assert query(dsn, f"SELECT count(*) FROM shapes WHERE {' OR '.join(wrong)}") == [(0,)]
    assert query(dsn, "SELECT count(DISTINCT id) FROM shapes") == [(rows,)]


@pytest.mark.parametrize("rows", [12, many(1_000)])
def test_rows_of_a_megabyte(spark: Any, dsn: str, rows: int) -> None:
    """Text and bytes; a batch has about eight of them, whatever `chunk_rows` is."""
    df = spark.range(0, rows, numPartitions=2).selectExpr(
        "id",
        "repeat(char(97 + id % 26), 500000) AS t",
        "unhex(repeat(lpad(hex(id % 256), 2, '0'), 500000)) AS b",
    )
    report = write_dataframe(df, sink(dsn, df))
    assert report.delivered == rows
    found = query(dsn, "SELECT id, md5(t), md5(b) FROM shapes ORDER BY id")
    expected = [
        (
            n,
            md5(chr(97 + n % 26).encode() * 500_000).hexdigest(),
            md5(bytes([n % 256]) * 500_000).hexdigest(),
        )
        for n in range(rows)
    ]
    assert found == expected
    assert max(unit.chunks for unit in report.units) >= rows // 2 // 8
