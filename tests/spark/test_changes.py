"""Changes from Spark: deletions, parts of rows, Debezium's events, with and without `latest_only`."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

pytest.importorskip("pyspark")
from tests.spark.sql import query

from sluicegate import ConfigError, Retry, stack
from sluicegate.postgres import Changes, PostgresSink
from sluicegate.spark import debezium_changes, register, write_dataframe

ORDER: dict[str, Any] = {"key": "id", "order_by": "seq", "buckets": 3}


@pytest.fixture
def dsn(embedded_postgres: Any) -> str:
    """A server with an empty table of states."""
    query(
        embedded_postgres.dsn,
        "DROP TABLE IF EXISTS states, customers, sluicegate_ledger; "
        "CREATE TABLE states (id bigint PRIMARY KEY, a text, b int NOT NULL DEFAULT 7)",
    )
    return str(embedded_postgres.dsn)


def sink(dsn: str, **settings: Any) -> Any:
    """A sink for the states, with `op` and `has` beside their columns."""
    given = {"op_column": "op", **settings}
    return PostgresSink(
        dsn,
        table="states",
        columns=("id", "a", "b"),
        on_conflict="update",
        changes=Changes(**given),
    )


@pytest.mark.parametrize(("latest_only", "delivery"), [(False, "at_least_once"), (True, "bucket")])
def test_the_last_change_of_each_key_wins_and_a_deletion_may_be_the_last(
    spark: Any, dsn: str, latest_only: bool, delivery: str
) -> None:
    """In two writes, of which the second is repeated, which changes nothing."""
    chance, left = random.Random(7), dict[int, tuple[Any, ...]]()
    for version in range(2):
        rows: list[tuple[Any, ...]] = []
        for seq in range(600):
            key, op = chance.randrange(80), chance.choice("IUUD")
            rows.append((seq, key, op, None if op == "D" else f"{version}-{seq}", seq))
            if op == "D":
                left.pop(key, None)
            else:
                left[key] = (key, *rows[-1][3:])
        chance.shuffle(rows)
        df = spark.createDataFrame(rows, "seq long, id long, op string, a string, b int")
        named: dict[str, Any] = {"delivery": delivery, "latest_only": latest_only}
        if delivery == "bucket":
            named |= {"app_id": "changes", "version": version}
        for _ in range(1 + version):
            report = write_dataframe(
                df,
                stack(sink(dsn), Retry()),
                **ORDER,
                chunk_rows=50,
                **named,
            )
            assert report.failed == 0
            found = query(dsn, "SELECT id, a, b FROM states ORDER BY id")
            assert found == sorted(left.values())


def test_a_part_of_a_row_leaves_the_other_columns(spark: Any, dsn: str) -> None:
    """NULL is a value; what is absent is kept, or is the table's default in a new row."""
    query(dsn, "INSERT INTO states VALUES (1, 'old', 1), (2, 'old', 2), (3, 'old', 3)")
    df = spark.sql("""
        SELECT * FROM VALUES
            (1, 1L, 'u', 'x', NULL, array('a')), (2, 1L, 'u', NULL, 5, array('b')),
            (1, 2L, 'u', NULL, NULL, array('a')), (1, 3L, 'u', 'x', 9, NULL),
            (1, 4L, 'c', 'new', NULL, array('a'))
        AS v(seq, id, op, a, b, has)
    """)
    report = write_dataframe(df, sink(dsn, present_column="has"), **ORDER)
    assert report.delivered == 5
    found = query(dsn, "SELECT id, a, b FROM states ORDER BY id")
    assert found == [(1, "x", 5), (2, None, 2), (3, "x", 9), (4, "new", 7)]


def test_an_unknown_operation_is_a_dead_letter(spark: Any, dsn: str) -> None:
    rows = [(1, 1, "t", "x", 1), (2, 2, "c", "y", 2), (3, 3, None, "z", 3)]
    df = spark.createDataFrame(rows, "seq int, id int, op string, a string, b int")
    report = write_dataframe(df, sink(dsn), **ORDER, dead_letters="return")
    assert sorted(dead.row["id"] for dead in report.dead_rows) == [1, 3]
    assert query(dsn, "SELECT id, a, b FROM states") == [(2, "y", 2)]


@pytest.mark.parametrize(
    ("changes", "settings", "told"),
    [
        ({}, {}, "key=None: is needed, and order_by"),
        ({}, {"key": "id"}, "key=.*is needed, and order_by"),
        ({"present_column": "has"}, {**ORDER, "latest_only": True}, "latest_only=True: would lose"),
        ({"op_column": "kind"}, ORDER, "column 'kind' is named in changes=, but is missing"),
        (
            {},
            {**ORDER, "delivery": "atomic", "app_id": "a", "version": 1},
            "changes=.*is not for atomic delivery",
        ),
    ],
)
def test_a_write_that_could_not_keep_the_order_is_refused(
    spark: Any, dsn: str, changes: dict[str, Any], settings: dict[str, Any], told: str
) -> None:
    df = spark.sql("SELECT 1 AS seq, 1 AS id, 'c' AS op, 'x' AS a, 1 AS b, array('a') AS has")
    with pytest.raises(ConfigError, match=told):
        write_dataframe(df, sink(dsn, **changes), **settings)
    assert query(dsn, "SELECT * FROM states") == []


# -- Debezium --------------------------------------------------------------------------------------


def event(op: str, before: Any, after: Any, *, enveloped: bool = False) -> str:
    """An event as Debezium's JSON converter writes it."""
    payload = {"op": op, "before": before, "after": after, "source": {"table": "t"}, "ts_ms": 1}
    return json.dumps({"schema": {"type": "struct"}, "payload": payload} if enveloped else payload)


def test_events_of_debezium_are_rows(spark: Any) -> None:
    """With and without the schema; tombstones are left out, and what is no event has no operation."""
    row = {"id": 1, "a": "x", "b": [1]}
    values = [
        event("c", None, row),
        event(
            "u",
            {"id": 1},
            {"id": 1, "a": "__debezium_unavailable_value", "b": None},
            enveloped=True,
        ),
        event("d", {"id": 1}, None),
        None,
        "no event",
    ]
    df = spark.createDataFrame([*enumerate(values)], "offset int, value string")
    found = debezium_changes(df, "id BIGINT, a STRING, b ARRAY<INT>", present_column="has")
    assert [tuple(each) for each in found.orderBy("offset").collect()] == [
        (0, "c", 1, "x", [1], ["id", "a", "b"]),
        (1, "u", 1, "__debezium_unavailable_value", None, ["id", "b"]),
        (2, "d", 1, None, None, None),
        (4, None, None, None, None, None),
    ]


@pytest.mark.parametrize(
    ("schema", "settings", "told"),
    [
        ("", {}, "schema=''.*must have the columns"),
        ("id BIGINT, offset INT", {}, r"df=\['offset'\].*two columns with the same name"),
        ("id BIGINT", {"op_column": "id"}, r"df=\['id'\]"),
        ("id BIGINT", {"value": "v"}, "value='v'.*must name columns of the DataFrame"),
    ],
)
def test_columns_that_events_cannot_have_are_refused(
    spark: Any, schema: str, settings: dict[str, Any], told: str
) -> None:
    df = spark.sql("SELECT '' AS value, 1 AS offset")
    with pytest.raises(ConfigError, match=told):
        debezium_changes(df, schema, **settings)


def test_a_format_has_no_order_for_changes(spark: Any, dsn: str) -> None:
    register(spark, "changed_states", sink(dsn))
    df = spark.sql("SELECT 1 AS id, 'c' AS op, 'x' AS a, 1 AS b")
    with pytest.raises(Exception, match="A format has no order"):
        df.write.format("changed_states").mode("append").save()
