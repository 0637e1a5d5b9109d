"""A table of PostgreSQL from the schema of a DataFrame, and partitions that are replaced."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("pyspark")
from tests.spark.sql import query

from sluicegate import ConfigError, Timeout, stack
from sluicegate.postgres import PostgresSink, postgres_columns
from sluicegate.spark import write_dataframe

if TYPE_CHECKING:
    from pathlib import Path

MOMENT = dt.datetime(2026, 3, 29, 1, 30, 0, 250_000, tzinfo=dt.UTC)
LOCAL = dt.datetime(1969, 7, 20, 20, 17, 40)
TYPES: dict[str, tuple[str, str, Any]] = {
    "true": ("boolean", "boolean", True),
    "cast(-7 AS tinyint)": ("smallint", "smallint", -7),
    "cast(-32768 AS smallint)": ("smallint", "smallint", -32_768),
    "cast(7 AS int)": ("integer", "integer", 7),
    "9223372036854775807": ("bigint", "bigint", 2**63 - 1),
    "cast(1.5 AS float)": ("real", "real", 1.5),
    "cast(1e300 AS double)": ("double precision", "double precision", 1e300),
    "cast(-0.125 AS decimal(12,3))": ("numeric(12,3)", "numeric(12,3)", Decimal("-0.125")),
    "'schön'": ("text", "text", "schön"),
    "X'00FF'": ("bytea", "bytea", b"\0\xff"),
    "DATE'1999-12-31'": ("date", "date", dt.date(1999, 12, 31)),
    "TIMESTAMP'2026-03-29 01:30:00.25+00:00'": ("timestamptz", "timestamp with time zone", MOMENT),
    "TIMESTAMP_NTZ'1969-07-20 20:17:40'": ("timestamp", "timestamp without time zone", LOCAL),
    "INTERVAL '1 02' DAY TO HOUR": ("interval", "interval", dt.timedelta(days=1, hours=2)),
    "array(1, null, 3)": ("integer[]", "integer[]", [1, None, 3]),
    "cast(array() AS array<string>)": ("text[]", "text[]", []),
    "array('a', '')": ("text[]", "text[]", ["a", ""]),
    "array(cast(1.50 AS decimal(4,2)))": ("numeric(4,2)[]", "numeric(4,2)[]", [Decimal("1.50")]),
    "array(TIMESTAMP'2026-03-29 01:30:00.25+00:00')": (
        "timestamptz[]",
        "timestamp with time zone[]",
        [MOMENT],
    ),
    "array(array(1, 2), array(3, null))": ("integer[]", "integer[]", [[1, 2], [3, None]]),
    "named_struct('a', 1, 'b', cast(null AS int))": ("jsonb", "jsonb", {"a": 1, "b": None}),
    "named_struct('d', DATE'2026-01-02', 'in', named_struct('x', array(1.5)))": (
        "jsonb",
        "jsonb",
        {"d": "2026-01-02", "in": {"x": [1.5]}},
    ),
    "map('k', 1, 'n', cast(null AS int))": ("jsonb", "jsonb", {"k": 1, "n": None}),
    "cast(map() AS map<string,int>)": ("jsonb", "jsonb", {}),
    "array(named_struct('a', 1), null)": ("jsonb", "jsonb", [{"a": 1}, None]),
    "cast(array() AS array<map<string,int>>)": ("jsonb", "jsonb", []),
    "parse_json('{\"v\": [1, null]}')": ("jsonb", "jsonb", {"v": [1, None]}),
}


@pytest.fixture
def dsn(embedded_postgres: Any) -> str:
    """A server without the tables of these tests."""
    query(embedded_postgres.dsn, "DROP TABLE IF EXISTS made, days, sluicegate_ledger CASCADE")
    return str(embedded_postgres.dsn)


def columns_of(dsn: str, table: str = "made") -> dict[str, str]:
    """The columns of a table and their types."""
    found = query(
        dsn,
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = "
        f"'{table}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
    )
    return dict(found)


@pytest.mark.parametrize("delivery", ["at_least_once", "atomic"])
def test_the_table_has_the_types_of_the_dataframe_and_every_value_arrives(
    spark: Any, dsn: str, delivery: str
) -> None:
    """Of each type a value and NULL; the primary key is that of the sink."""
    nulls = [f"if(id = 1, {sql}, null) AS c{place}" for place, sql in enumerate(TYPES)]
    df = spark.range(1, 3).selectExpr("id", *nulls)
    columns = postgres_columns(df.schema)
    assert list(columns.values())[1:] == [given for given, _, _ in TYPES.values()]
    sink = PostgresSink(
        dsn,
        table="made",
        columns=columns,
        create_table="if_missing",
        on_conflict="update",
        conflict_columns=("id",),
    )
    settings: dict[str, Any] = {"delivery": delivery}
    if delivery == "atomic":
        settings |= {"app_id": "a", "version": 1}
    write_dataframe(df, stack(sink, Timeout(60.0)), **settings)

    there = columns_of(dsn)
    assert list(there.values()) == ["bigint", *(there for _, there, _ in TYPES.values())]
    key = "SELECT indkey::text FROM pg_index WHERE indrelid = 'made'::regclass AND indisprimary"
    assert query(dsn, key) == [("1",)]
    (_, *first), (_, *second) = query(dsn, "SELECT * FROM made ORDER BY id")
    is_json = [kind == "jsonb" for kind, _, _ in TYPES.values()]
    read = [json.loads(value) if js else value for js, value in zip(is_json, first, strict=True)]
    assert read == [value for _, _, value in TYPES.values()]
    assert second == [None] * len(TYPES)


def test_a_ragged_array_fails_alone(spark: Any, dsn: str) -> None:
    df = spark.sql(
        "SELECT 1 AS id, array(array(1), array(2, 3)) AS v UNION SELECT 2, array(array(4))"
    )
    sink = PostgresSink(
        dsn, table="made", columns=postgres_columns(df.schema), create_table="if_missing"
    )
    report = write_dataframe(df, sink, dead_letters="return")
    assert [dead.row["id"] for dead in report.dead_rows] == [1]
    assert query(dsn, "SELECT * FROM made") == [(2, [[4]])]


def test_a_table_gains_the_columns_that_it_lacks(spark: Any, dsn: str) -> None:
    """Also at `atomic`, whose stages then have them."""
    query(dsn, "CREATE TABLE made (id bigint PRIMARY KEY); INSERT INTO made VALUES (7)")
    df = spark.sql("SELECT 1L AS id, map('a', 1) AS tags, array('x') AS words")
    columns = postgres_columns(df.schema)
    sink = PostgresSink(dsn, table="made", columns=columns, on_new_column="add")
    write_dataframe(df, sink, delivery="atomic", app_id="a", version=1)
    assert columns_of(dsn) == {"id": "bigint", "tags": "jsonb", "words": "text[]"}
    found = query(dsn, "SELECT * FROM made ORDER BY id")
    assert found == [(1, '{"a": 1}', ["x"]), (7, None, None)]


def faults(df: Any, sink: PostgresSink) -> list[str]:
    """The lines of the refusal, of the names before the server is asked, or of the types."""
    with pytest.raises(ConfigError) as told:
        write_dataframe(df, sink)
    _, *lines = str(told.value).split("\n  ")
    return sorted(lines)


def test_a_schema_that_does_not_fit_is_told_column_by_column(spark: Any, dsn: str) -> None:
    query(
        dsn, "CREATE TABLE made (id integer, day date, tags integer, must text NOT NULL, more text)"
    )
    df = spark.sql("SELECT 'x' AS id, 1 AS day, map('a', 1) AS tags, 2 AS extra")
    sink = PostgresSink(
        dsn, table="made", columns=("id", "day", "tags", "more"), on_new_column="fail"
    )
    assert faults(df, sink) == [
        "column 'extra' (int) is not among the columns of the sink; name it there, or leave it out",
        "column 'more' is a column of the sink, but is missing; the schema has 'id', 'day', 'tags', "
        "'extra'",
    ]
    sink = PostgresSink(dsn, table="made", columns=("id", "day", "tags"), on_new_column="fail")
    assert faults(df.drop("extra"), sink) == [
        "column 'day' (int) does not fit into date; cast it first",
        "column 'id' (string) does not fit into integer; cast it first",
        "column 'must' is NOT NULL in the table and has no default there, but is not a column of "
        "the sink",
        "column 'tags' (map<string,int>) does not fit into integer; cast it first",
    ]
    assert query(dsn, "SELECT count(*) FROM made") == [(0,)]


DAYS = (
    "CREATE TABLE days (day date NOT NULL, id int, note text, PRIMARY KEY (day, id)) {}; "
    "INSERT INTO days VALUES ('2026-07-04', 1, 'old'), ('2026-07-05', 1, 'old'), "
    "('2026-07-05', 2, 'old'), ('2026-07-06', 1, 'old'); CREATE VIEW seen AS SELECT * FROM days"
)
PARTITIONED = (
    "PARTITION BY RANGE (day); CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM (MINVALUE) TO "
    "('2026-07-06'); CREATE TABLE days_2 PARTITION OF days DEFAULT"
)
OVERWRITE: dict[str, Any] = {"delivery": "atomic", "mode": "overwrite", "app_id": "nightly"}


def days(spark: Any, rows: str) -> Any:
    """Rows of a table of days."""
    return spark.sql(f"SELECT * FROM VALUES {rows} AS v(day, id, note)")


@pytest.mark.parametrize("kind", ["", PARTITIONED], ids=["plain", "partitioned"])
def test_one_partition_is_replaced_at_once(spark: Any, dsn: str, kind: str) -> None:
    """A table with a view, which could not be replaced as a whole; a repeated write does nothing."""
    query(dsn, DAYS.format(kind))
    sink = PostgresSink(dsn, table="days", columns=("day", "id", "note"))
    df = days(spark, "(DATE'2026-07-05', 2, 'new'), (DATE'2026-07-05', 3, 'new')")
    day = {"day": dt.date(2026, 7, 5)}
    expected = [(4, 1, "old"), (5, 2, "new"), (5, 3, "new"), (6, 1, "old")]
    found = "SELECT extract(day FROM day)::int, id, note FROM seen ORDER BY 1, 2"
    write_dataframe(df, sink, **OVERWRITE, version=1, partition=day)
    assert query(dsn, found) == expected
    report = write_dataframe(df, sink, **OVERWRITE, version=1, partition=day)
    assert (report.delivered, report.duplicate) == (0, 2)
    assert query(dsn, found) == expected
    write_dataframe(df.where("false"), sink, **OVERWRITE, version=2, partition=day)
    assert query(dsn, found) == [(4, 1, "old"), (6, 1, "old")]


def test_a_row_outside_of_the_partition_leaves_everything(spark: Any, dsn: str) -> None:
    query(dsn, DAYS.format(""))
    sink = PostgresSink(dsn, table="days", columns=("day", "id", "note"))
    df = days(spark, "(DATE'2026-07-05', 2, 'new'), (DATE'2026-07-06', 3, 'new')")
    with pytest.raises(ConfigError, match="must be the values of all rows of df"):
        write_dataframe(df, sink, **OVERWRITE, version=1, partition={"day": "2026-07-05"})
    assert query(dsn, "SELECT count(*) FROM days WHERE note = 'old'") == [(4,)]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"mode": "append", "partition": {"day": "2026-07-05"}}, "partition=.*needs mode="),
        ({"partition": {}}, "partition=.*at least one column"),
        ({"partition": {"days": 1}}, "partition=.*must name columns of the DataFrame"),
        ({"partition": {"day": [1]}}, r"partition\['day'\]=\[1\].*must be text, a number"),
    ],
)
def test_a_partition_that_cannot_be_meant_is_refused(
    spark: Any, settings: dict[str, Any], told: str
) -> None:
    sink = PostgresSink("postgresql://nowhere.invalid/x", table="days", columns=("day",))
    df = spark.sql("SELECT DATE'2026-07-05' AS day")
    with pytest.raises(ConfigError, match=told):
        write_dataframe(df, sink, **{**OVERWRITE, **settings}, version=1)


@pytest.mark.parametrize(
    ("right", "settings", "lacking"),
    [
        ("SELECT, INSERT", {}, "role postgres, the owner of the table, to nightly"),
        ("SELECT, INSERT", {"partition": {"day": "2026-07-05"}}, "DELETE on days to nightly"),
        (
            "INSERT",
            {"mode": "append"},
            "CREATE on schema public to nightly, SELECT on days to nightly",
        ),
    ],
    ids=["table", "partition", "append"],
)
def test_a_missing_right_is_named_before_the_work(
    spark: Any, dsn: str, tmp_path: Path, right: str, settings: dict[str, Any], lacking: str
) -> None:
    query(
        dsn,
        f"{DAYS.format('')}; DROP VIEW seen; CREATE ROLE nightly LOGIN PASSWORD 'x'; "
        f"GRANT {right} ON days TO nightly; "
        "GRANT CREATE ON SCHEMA public TO nightly",
    )
    if "CREATE" in lacking:
        query(dsn, "REVOKE CREATE ON SCHEMA public FROM nightly, PUBLIC")
    tell = tmp_path / "ran"

    def note(rows: Any) -> Any:
        for batch in rows:
            tell.touch()
            yield batch

    df = spark.sql("SELECT DATE'2026-07-05' AS day, 1 AS id, 'x' AS note").mapInArrow(
        note, "day date, id int, note string"
    )
    sink = PostgresSink(
        urlsplit(dsn)
        ._replace(netloc=f"nightly:x@{urlsplit(dsn).netloc.rpartition('@')[2]}")
        .geturl(),
        table="days",
        columns=("day", "id", "note"),
    )
    try:
        with pytest.raises(ConfigError, match=f"grant {lacking}$"):
            write_dataframe(df, sink, **{**OVERWRITE, **settings}, version=1)
        assert not tell.exists()
    finally:
        query(dsn, "DROP OWNED BY nightly; DROP ROLE nightly")
