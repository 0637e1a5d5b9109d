"""Only the last row of each key is sent, and nothing else is lost. White box: the query for the
last rows, besides writes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from pyspark.sql import functions
from tests.spark.sql import query

from sluicegate import Batch, ConfigError, PermanentError, WriteResult
from sluicegate.postgres import PostgresSink
from sluicegate.spark import latest as driver_latest
from sluicegate.spark import write_dataframe
from sluicegate.spark.latest import latest_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate.spark import SparkWriteReport

LATEST: dict[str, Any] = {"key": "id", "order_by": "at", "latest_only": True, "buckets": 2}


@pytest.fixture
def table(embedded_postgres: Any) -> str:
    """A table that holds one row, with a unique key that allows NULL."""
    query(
        embedded_postgres.dsn,
        "DROP TABLE IF EXISTS states, sluicegate_ledger; "
        "CREATE TABLE states (id bigint UNIQUE, at double precision, note text); "
        "INSERT INTO states VALUES (1, 0, 'old')",
    )
    return str(embedded_postgres.dsn)


def sink(dsn: str, conflict_columns: Sequence[str] | None = None) -> PostgresSink:
    return PostgresSink(
        dsn,
        table="states",
        columns=("id", "at", "note"),
        on_conflict="update",
        conflict_columns=conflict_columns,
    )


def latest(spark: Any, rows: Sequence[tuple[Any, ...]], schema: str) -> list[tuple[Any, ...]]:
    """The last rows of `id` by `at`; neighbours come from two partitions."""
    df = spark.createDataFrame([*rows[::2], *rows[1::2]], schema)
    return [tuple(row) for row in latest_rows(df, ("id",), ("at",)).collect()]


def test_the_last_version_of_each_key_arrives_and_the_others_are_counted(
    spark: Any, table: str
) -> None:
    df = spark.range(0, 6_000, numPartitions=3).selectExpr(
        "id * 7919 % 100 AS id", "cast(id AS double) AS at", "concat('v', id) AS note"
    )
    report = write_dataframe(df, sink(table), **LATEST)
    assert (report.rows, report.delivered, report.superseded) == (100, 100, 5_900)
    assert "5,900 superseded" in report.summary
    found = query(table, "SELECT id, at, note FROM states ORDER BY at")
    assert len(found) == 100
    assert [(int(at), note) for _, at, note in found] == [(n, f"v{n}") for n in range(5_900, 6_000)]
    assert all(n * 7919 % 100 == key for key, n, _ in found)


def test_rows_without_a_key_are_all_written(spark: Any, table: str) -> None:
    """The table keeps each of them; equal ones count separately."""
    nameless = [(None, 1.0, "a"), (None, 1.0, "a"), (None, 2.0, "b"), (None, None, None)]
    rows = [*nameless, (1, 1.0, "x"), (1, 2.0, "y"), (2, 1.0, "z")]
    df = spark.createDataFrame(rows, "id long, at double, note string")
    report = write_dataframe(df, sink(table), **LATEST)
    assert (report.delivered, report.superseded) == (6, 1)
    found = query(table, "SELECT id, at, note FROM states")
    assert Counter(found) == Counter([*nameless, (1, 2.0, "y"), (2, 1.0, "z")])


def test_order_is_that_of_sorted_rows(spark: Any) -> None:
    """NULL comes first and NaN last; a key whose rows all have NULL keeps one."""
    nan = float("nan")
    rows = [
        *((1, None, "null"), (1, -1.0, "number")),
        *((2, nan, "nan"), (2, float("inf"), "number")),
        *((3, None, "one"), (3, None, "one")),
        (4, 0.0, "alone"),
    ]
    found = latest(spark, rows, "id long, at double, note string")
    assert sorted((key, note, more) for key, _, note, more in found) == [
        (1, "number", 1),
        (2, "nan", 1),
        (3, "one", 1),
        (4, "alone", 0),
    ]


def test_several_columns_order_the_rows_and_make_the_key(spark: Any) -> None:
    rows = [(1, "a", 1, 9), (1, "a", 2, 0), (1, "b", 1, 1), (1, None, 1, 1), (1, None, 2, 2)]
    df = spark.createDataFrame(rows, "id int, part string, at int, more int")
    found = latest_rows(df, ("id", "part"), ("at", "more")).collect()
    assert sorted((row.part or "", row.at, row.sluicegate_superseded) for row in found) == [
        ("", 1, 0),
        ("", 2, 0),
        ("a", 2, 1),
        ("b", 1, 0),
    ]


@pytest.mark.parametrize("kind", ["int", "bigint", "string", "date"])
def test_rows_without_a_key_are_kept_whatever_the_type_of_the_key(spark: Any, kind: str) -> None:
    """Each of them, besides the last row of the only key."""
    key = "DATE'2026-01-01'" if kind == "date" else f"cast(7 AS {kind})"
    rows = f"SELECT if(id < 3, NULL, {key}) AS id, id % 4 AS at, 'n' AS note FROM range(9)"
    df = spark.sql(rows)
    found = latest_rows(df, ("id",), ("at",)).collect()
    assert sorted((row.id is None, row.at, row.sluicegate_superseded) for row in found) == [
        (False, 3, 5),
        (True, 0, 0),
        (True, 1, 0),
        (True, 2, 0),
    ]


def test_a_key_equal_to_the_hash_of_a_row_without_one_is_another_key(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_latest, "row_hash", lambda df, columns: functions.lit(7))
    rows = [(None, 1.0, "a"), (None, 2.0, "b"), (7, 3.0, "c"), (7, 4.0, "d")]
    found = latest(spark, rows, "id long, at double, note string")
    assert sorted((note, more) for _, _, note, more in found) == [("a", 0), ("b", 0), ("d", 1)]


def test_values_of_any_type_and_odd_names_are_kept(spark: Any) -> None:
    df = spark.sql(
        "SELECT id % 2 AS `a.b`, id AS `last`, named_struct('x', array(id)) AS `c``d`, "
        "map('k', id) AS superseded, parse_json(concat('{\"v\":', id, '}')) AS c0, "
        "cast(id AS decimal(20, 2)) AS k0 FROM range(10)"
    )
    found = latest_rows(df, ("a.b",), ("last",))
    assert found.columns == [*df.columns, "sluicegate_superseded"]
    assert [*found.schema.simpleString()] == [
        *df.schema.simpleString()[:-1],
        *",sluicegate_superseded:bigint>",
    ]
    assert sorted(tuple(row)[:4] for row in found.collect()) == [
        (0, 8, ([8],), {"k": 8}),
        (1, 9, ([9],), {"k": 9}),
    ]


def test_keys_that_only_a_collation_makes_equal_are_all_kept(spark: Any) -> None:
    """The destination may distinguish them."""
    df = spark.sql(
        "SELECT collate(k, 'UTF8_LCASE') AS id, at FROM VALUES ('a', 1), ('A', 2), ('A', 3) t(k, at)"
    )
    found = latest_rows(df, ("id",), ("at",)).collect()
    assert sorted(tuple(row) for row in found) == [("A", 3, 1), ("a", 1, 0)]


@pytest.mark.parametrize("delivery", ["bucket", pytest.param("atomic", marks=pytest.mark.soak)])
def test_a_repeated_write_sends_the_same_rows_even_where_several_are_last(
    spark: Any, table: str, delivery: Any
) -> None:
    """They are equal in their order but differ otherwise, and come from other partitions."""
    rows = [(n % 50, 1.0, f"v{n}") for n in range(200)]
    options: dict[str, Any] = {**LATEST, "delivery": delivery, "app_id": "states"}
    reports: list[SparkWriteReport] = []
    for version, partitions in ((1, 3), (1, 5), (2, 2)):
        df = spark.createDataFrame(rows, "id long, at double, note string").repartition(partitions)
        reports.append(write_dataframe(df, sink(table), version=version, **options))
        rows.reverse()
        found = sorted(query(table, "SELECT id, at, note FROM states"))
        assert len(found) == 50
    first, again, other = reports
    assert (first.rows, first.superseded, first.skipped_units) == (50, 150, 0)
    assert (again.rows, again.skipped_units) == (50, 1 if delivery == "atomic" else 2)
    assert (other.rows, other.superseded) == (50, 150)


def test_a_bad_last_row_is_a_dead_letter_and_no_earlier_one_takes_its_place(spark: Any) -> None:
    def refuses_twos(batch: Batch[Any]) -> WriteResult:
        bad = {i: PermanentError("a two") for i, row in enumerate(batch) if row["at"] == 2.0}
        return WriteResult.failed(batch, bad)

    rows = [(1, 1.0), (1, 2.0), (2, 1.0)]
    df = spark.createDataFrame(rows, "id long, at double")
    report = write_dataframe(df, refuses_twos, dead_letters="return", **LATEST)
    assert (report.rows, report.delivered, report.failed, report.superseded) == (2, 1, 1, 1)
    assert report.dead_rows[0].row == {"id": 1, "at": 2.0}


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"order_by": None}, "needs key and order_by"),
        ({"key": None, "order_by": None, "buckets": None}, "needs key and order_by"),
        ({"latest_only": "yes"}, "must be True or False"),
        ({"key": "note"}, "differ in id do not replace one another"),
        ({"key": "sluicegate_superseded"}, "reserved"),
    ],
)
def test_what_could_lose_rows_is_refused(
    spark: Any, table: str, options: dict[str, Any], rule: str
) -> None:
    """The key of the table is known only from the open sink."""
    column = "sluicegate_superseded" if rule == "reserved" else "note"
    df = spark.sql(f"SELECT 1L AS id, 1D AS at, 'n' AS {column}")
    with pytest.raises(ConfigError, match=rule):
        write_dataframe(df, sink(table), **{**LATEST, **options})
    assert query(table, "SELECT note FROM states") == [("old",)]


def test_declared_conflict_columns_are_compared_before_opening(spark: Any) -> None:
    df = spark.sql("SELECT 1L AS id, 1D AS at, 'n' AS note")
    closed = sink("postgresql://nowhere.invalid/db", conflict_columns=("id", "at"))
    with pytest.raises(ConfigError, match=r"whole key \(id, at\)"):
        write_dataframe(df, closed, check=False, **LATEST)
