"""A pipeline, and a format, that create their table, apply changes, or replace a part of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from tests.spark.sql import query

from sluicegate.spark import Pipeline

if TYPE_CHECKING:
    from pathlib import Path

CHANGES = """\
name = "changes"
[sources.changed]
format = "parquet"
path = "${ROWS}"
[write]
view = "changed"
sink = "it"
key = "id"
order_by = "seq"
[sinks.it]
kind = "postgres"
dsn = "${PG_DSN}"
table = "made"
create_table = "if_missing"
on_conflict = "update"
changes = { op_column = "op" }
"""
NIGHTLY = """\
name = "nightly"
[sources.rows]
format = "parquet"
path = "${ROWS}"
[write]
view = "rows"
sink = "it"
delivery = "atomic"
mode = "overwrite"
partition = { day = "2026-07-05" }
version = 1
[sinks.it]
kind = "postgres"
dsn = "${PG_DSN}"
table = "made"
"""


@pytest.fixture
def dsn(embedded_postgres: Any) -> str:
    """A server without the table of these tests."""
    query(embedded_postgres.dsn, "DROP TABLE IF EXISTS made, sluicegate_ledger")
    return str(embedded_postgres.dsn)


def run(text: str, spark: Any, dsn: str, folder: Path, rows: str) -> None:
    """Run the pipeline on these rows."""
    spark.sql(rows).write.parquet(str(folder / "rows"))
    file = folder / "it.toml"
    file.write_text(text)
    environment = {"PG_DSN": dsn, "ROWS": str(folder / "rows")}
    Pipeline.read(file).run(spark, environment=environment)


def test_a_pipeline_creates_its_table_and_applies_changes(
    spark: Any, dsn: str, tmp_path: Path
) -> None:
    """The primary key is the key of the write."""
    rows = """
        SELECT * FROM VALUES (1, 1, 'c', map('a', 1)), (1, 2, 'c', map()), (2, 2, 'd', NULL)
        AS v(seq, id, op, tags)
    """
    run(CHANGES, spark, dsn, tmp_path, rows)
    assert query(dsn, "SELECT * FROM made") == [(1, 1, '{"a": 1}')]
    key = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'made_pkey'"
    assert query(dsn, key) == [("PRIMARY KEY (id)",)]


def test_a_pipeline_replaces_a_partition(spark: Any, dsn: str, tmp_path: Path) -> None:
    query(dsn, "CREATE TABLE made (day date, id int)")
    query(dsn, "INSERT INTO made VALUES ('2026-07-04', 1), ('2026-07-05', 1), ('2026-07-05', 2)")
    run(NIGHTLY, spark, dsn, tmp_path, "SELECT DATE'2026-07-05' AS day, 7 AS id")
    assert query(dsn, "SELECT day::text, id FROM made ORDER BY 1") == [
        ("2026-07-04", 1),
        ("2026-07-05", 7),
    ]


def test_mistakes_are_found_without_spark(tmp_path: Path) -> None:
    wrong = CHANGES.replace('"op" }', '"" }').replace('key = "id"\n', "")
    (tmp_path / "it.toml").write_text(wrong.replace('order_by = "seq"\n', ""))
    environment = {"PG_DSN": "postgresql://h/d", "ROWS": "rows"}
    text = "\n".join(map(str, Pipeline.read(tmp_path / "it.toml").mistakes(environment)))
    assert "sinks.it.changes.op_column: op_column=''" in text
    assert "conflict_columns=None: is needed with create_table" in text


def test_a_format_creates_its_table(spark: Any, dsn: str) -> None:
    df = spark.sql("SELECT 1 AS id, array(1.5) AS v")
    df.write.format("sluicegate").option("url", dsn).option("dbtable", "made").option(
        "create_table", "if_missing"
    ).mode("append").save()
    types = (
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attnum > 0 AND attrelid = "
    )
    assert query(dsn, f"{types}'made'::regclass ORDER BY attnum") == [
        ("integer",),
        ("numeric(2,1)[]",),
    ]
