"""Values and keys that only a DataFrame can hold: values without a Python object, session time
zones, NaN and collated keys, altered tables. White box: time zones and chunks without Spark,
besides writes.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
import pyarrow as pa
from tests.spark.sql import query

from sluicegate import (
    ArrowBatch,
    Batch,
    ConfigError,
    DeadLetter,
    FanOut,
    PermanentError,
    WriteResult,
    stack,
)
from sluicegate._core.stacking import as_sink
from sluicegate.files import FileSink
from sluicegate.postgres import PostgresSink
from sluicegate.spark import write_dataframe
from sluicegate.spark.task.chunks import cut
from sluicegate.spark.task.key_failure import KeyFailurePolicy
from sluicegate.spark.task.task import write_chunk
from sluicegate.spark.values import in_zone, spell_zone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ZONE = "America/New_York"


@pytest.fixture
def in_new_york(spark: Any) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


# -- values ----------------------------------------------------------------------------------------


def test_a_value_that_cannot_be_carried_costs_its_own_row(
    spark: Any, embedded_postgres: Any, tmp_path: Path
) -> None:
    """P-T10: in columns, in rows beside a column without encoder, and in a sink without column
    support; letters show as much as possible.
    """
    dsn = embedded_postgres.dsn
    query(
        dsn,
        "DROP TABLE IF EXISTS plain, beside; CREATE TABLE plain (id int, t text, d date); "
        "CREATE TABLE beside (LIKE plain, i interval)",
    )
    df = spark.range(0, 100, numPartitions=1).selectExpr(
        "cast(id AS int) AS id",
        "CASE WHEN id = 7 THEN cast(unhex('61ff') AS string) ELSE 'fine' END AS t",
        "CASE WHEN id = 8 THEN date_add(DATE'2000-01-01', 3000000) ELSE DATE'2026-01-01' END AS d",
        "INTERVAL '1' DAY AS i",
    )
    columns = ("id", "t", "d")
    report = write_dataframe(
        df, PostgresSink(dsn, table="plain", columns=columns), dead_letters="return"
    )
    assert [(dead.row["id"], dead.row["t"], dead.message) for dead in report.dead_rows] == [
        (7, "a\\xff", "column 't': holds bytes that are not UTF-8")
    ]
    assert query(dsn, "SELECT count(*), max(d)::text FROM plain") == [(99, "10213-09-21")]
    letters = DeadLetter(
        FileSink(tmp_path / "letters.jsonl", per_process=True),
        record=lambda record: [record.item["id"], record.message],
    )
    report = write_dataframe(
        df, stack(PostgresSink(dsn, table="beside", columns=(*columns, "i")), letters)
    )
    assert (report.delivered, report.dead_letters) == (98, 2)
    assert query(dsn, "SELECT count(*) FROM beside WHERE id NOT IN (7, 8)") == [(98,)]
    shown = [
        json.loads(line)
        for path in tmp_path.glob("letters*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert [number for number, _ in shown] == [7, 8]
    assert "column 'd': holds a date32[day] that Python has no object for" in shown[1][1]
    report = write_dataframe(
        df.drop("i"), FileSink(tmp_path / "rows.jsonl", per_process=True), dead_letters="return"
    )
    assert [(dead.row["id"], dead.row["d"]) for dead in report.dead_rows] == [
        (7, "2026-01-01"),
        (8, "3010957"),
    ]
    written = [
        json.loads(line)["id"]
        for path in tmp_path.glob("rows*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert written == [number for number in range(100) if number not in {7, 8}]


TIMES = """
    id int, a timestamp, b timestamptz, c timestamptz, d date, e timestamptz[], f numeric,
    sa text, sb text, sc text, sd text, sf text
"""


def test_casts_go_by_the_time_zone_of_the_session(
    spark: Any, embedded_postgres: Any, in_new_york: None
) -> None:
    """Row by row like Spark's own cast to text, across both clock changes, in columns and in
    rows.
    """
    dsn = embedded_postgres.dsn
    query(
        dsn,
        f"DROP TABLE IF EXISTS times, times_too; CREATE TABLE times ({TIMES}); CREATE TABLE "
        "times_too (LIKE times, i interval)",
    )
    start = (
        "CASE WHEN id < 400 THEN TIMESTAMP_NTZ'2026-03-07 12:00:00' ELSE "
        "TIMESTAMP_NTZ'2026-10-31 12:00:00' END"
    )
    df = (
        spark.range(0, 800, numPartitions=1)
        .selectExpr("id", f"{start} + make_dt_interval(0, 0, (id % 400) * 7, 0.25) AS ntz", "id / 10 AS f")
        .selectExpr("id", "ntz", "f", "timestamp_micros(unix_micros(TIMESTAMP'2026-03-07 12:00:00Z') + id * 100000000L) AS ts")
        .selectExpr("*", "cast(ntz AS date) AS day", "INTERVAL '1' DAY AS i")
        .selectExpr(
            "cast(id AS int) AS id", "ts AS a", "ntz AS b", "day AS c", "cast(ts AS date) AS d", "array(ntz) AS e", "f", "i",
            "cast(ts AS string) AS sa", "cast(unix_micros(cast(ntz AS timestamp)) AS string) AS sb",
            "cast(unix_micros(cast(day AS timestamp)) AS string) AS sc", "cast(cast(ts AS date) AS string) AS sd", "cast(f AS string) AS sf",
        )
    )  # fmt: skip
    columns = ("id", "a", "b", "c", "d", "e", "f", "sa", "sb", "sc", "sd", "sf")
    both = FanOut(
        PostgresSink(dsn, table="times", columns=columns),
        PostgresSink(dsn, table="times_too", columns=(*columns, "i")),
    )
    assert write_dataframe(df, both, check=False).delivered == 800
    micros = "(extract(epoch FROM {}) * 1000000)::bigint::text"
    for table in ("times", "times_too"):
        wrong = query(
            dsn,
            f"SELECT * FROM {table} WHERE a::text <> sa OR d::text <> sd OR "
            f"{micros.format('b')} <> sb OR {micros.format('c')} <> sc"
            f" OR e[1] <> b OR f <> sf::numeric OR length(f::text) > 6",
        )
        assert wrong == []
        assert query(
            dsn, f"SELECT count(*) FROM {table} WHERE a IS NOT NULL AND b IS NOT NULL"
        ) == [(800,)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [("UTC+2", "+02:00"), ("-7:30", "-07:30"), ("Z", "UTC"), (ZONE, ZONE), ("+0530", "+05:30")],
)
def test_zones_are_spelt_as_arrow_reads_them(given: str, expected: str) -> None:
    """A column with another spelling has rows anyway."""
    assert spell_zone(given) == expected
    kind = pa.timestamp("us", given)
    batch = pa.record_batch(
        {
            "t": pa.array([0], pa.int64()).cast(kind),
            "l": pa.array([[0]], pa.list_(pa.int64())).cast(pa.list_(kind)),
        }
    )
    [found] = in_zone([batch], None)
    assert (
        ArrowBatch(found)[0]["t"]
        == ArrowBatch(found)[0]["l"][0]
        == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    )


def test_an_unknown_zone_is_told_on_the_driver(spark: Any, in_new_york: None) -> None:
    spark.conf.set("spark.sql.session.timeZone", "PST")
    with pytest.raises(
        ConfigError,
        match=r"spark.sql.session.timeZone='PST': is a zone that Arrow does not know; set a region",
    ):
        write_dataframe(spark.range(1), refuses_bad)


# -- keys ------------------------------------------------------------------------------------------


async def refuses_bad(batch: Batch[Any]) -> WriteResult:
    return WriteResult.failed(
        batch, {index: PermanentError("bad") for index, row in enumerate(batch) if row["bad"]}
    )


NAN = float("nan")
KEYS = {
    "NaN": pa.array([NAN, NAN, NAN, NAN, 1.0, 1.0]),
    "zeros": pa.array([0.0, -0.0, -0.0, 0.0, 1.0, 1.0]),
    "bytes": pa.array([b"\xff", b"\xff", b"\xff", b"\xff", b"a", b"a"], pa.binary()).view(
        pa.string()
    ),
    "dates": pa.array([10**7] * 4 + [0, 0], pa.int32()).cast(pa.date32()),
    "nothing": pa.nulls(6),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_that_are_equal_for_spark_are_one_key(kind: str) -> None:
    """They are neither split between concurrent chunks nor written behind a failed row; NULL is a
    key, too.
    """
    rows = pa.record_batch({"k": KEYS[kind], "bad": [True] + [False] * 5})
    order = KeyFailurePolicy("stop", ("k",))
    chunks = list(cut([rows], max_rows=2, max_bytes=1 << 20, key=("k",)))
    assert [chunk.continues for chunk in chunks] == [False, True, kind == "nothing"]
    sink = as_sink(refuses_bad)

    async def run() -> list[Any]:
        return [
            await write_chunk(sink, chunk, name="u", patience=1.0, order=order) for chunk in chunks
        ]

    written = asyncio.run(run())
    assert [each.stopped for each in written] == [1, 2, 2 if kind == "nothing" else 0]


def test_a_key_with_a_collation_is_written_chunk_after_chunk(
    spark: Any, embedded_postgres: Any
) -> None:
    """'a' equals 'A', which only Spark can determine: it groups and sorts, and no chunk overtakes
    the previous one.
    """
    dsn = embedded_postgres.dsn
    query(dsn, "DROP TABLE IF EXISTS collated; CREATE TABLE collated (k text, n bigint, nr serial)")
    df = spark.range(0, 60, numPartitions=2).selectExpr(
        "CASE WHEN id % 2 = 0 THEN 'a' ELSE 'A' END COLLATE UTF8_LCASE AS k", "id AS n"
    )
    sink = PostgresSink(dsn, table="collated", columns=("k", "n"))
    assert (
        write_dataframe(
            df, sink, key="k", order_by="n", buckets=2, chunk_rows=5, max_in_flight=4
        ).delivered
        == 60
    )
    assert [row[0] for row in query(dsn, "SELECT n FROM collated ORDER BY nr")] == [*range(60)]
    with pytest.raises(
        ConfigError, match=r"on_key_failure='stop': needs a key with bytewise equality"
    ):
        write_dataframe(df, sink, key="k", on_key_failure="stop")


def test_every_chunk_of_a_collated_key_waits() -> None:
    rows = pa.record_batch({"k": ["a", "A", "b", "B"]})
    chunks = cut([rows], max_rows=1, max_bytes=1 << 20, key=("k",), serial=True)
    assert [chunk.continues for chunk in chunks] == [False, True, True, True]


def test_names_of_keys_are_taken_literally(spark: Any, embedded_postgres: Any) -> None:
    """Dots and backticks are part of a name, and no field of a structure with the same name is
    written in its place.
    """
    dsn = embedded_postgres.dsn
    query(
        dsn,
        'DROP TABLE IF EXISTS dotted; CREATE TABLE dotted ("a.b" bigint, "c`d" bigint, nr serial)',
    )
    df = spark.range(0, 60, numPartitions=2).selectExpr(
        "id % 3 AS `a.b`", "id AS `c``d`", "named_struct('b', -1L) AS a"
    )
    sink = PostgresSink(dsn, table="dotted", columns=("a.b", "c`d"))
    assert write_dataframe(df, sink, key="a.b", order_by="c`d", buckets=2).delivered == 60
    assert query(
        dsn, 'SELECT count(DISTINCT "a.b"), min("a.b"), count(DISTINCT "c`d") FROM dotted'
    ) == [(3, 0, 60)]
    inversions = (
        'SELECT "c`d" < lag("c`d") OVER (PARTITION BY "a.b" ORDER BY nr) AS bad FROM dotted'
    )
    assert query(dsn, f"SELECT count(*) FROM ({inversions}) AS t WHERE bad") == [(0,)]


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "field": (
        "named_struct('b', id) AS a",
        {"key": "a.b"},
        r"key='a.b': must name columns, but 'a.b' is a field .*withColumn\('b', df\['a.b'\]\)",
    ),
    "array": (
        "array(id) AS a",
        {"key": "a"},
        r"key='a': is an array \(array<bigint>\), which has no order",
    ),
    "struct": (
        "named_struct('b', id) AS a",
        {"key": "a"},
        r"key='a': is a struct \(struct<b:bigint>\)",
    ),
    "map": ("map(id, id) AS a", {"key": "a"}, r"key='a': is a map"),
    "variant": ("parse_json('1') AS a", {"key": "a"}, r"key='a': is a variant"),
    "order by a map": (
        "map(id, id) AS a",
        {"key": "id", "order_by": "a"},
        r"order_by='a': is a map",
    ),
    "order by an array of maps": (
        "array(map(id, id)) AS a",
        {"key": "id", "order_by": ["a"]},
        r"order_by='a': is a map",
    ),
    "equal names": ("1 AS a, 2 AS a", {}, r"df=\['a', 'a'\]: are two columns with the same name"),
    "names equal but for case": (
        "1 AS a, 2 AS A",
        {"key": "id"},
        r"df=\['a', 'A'\]: are two columns .*spark.sql.caseSensitive is false",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_keys_without_an_order_are_refused_on_the_driver(spark: Any, what: str) -> None:
    expression, options, told = WRONG[what]
    with pytest.raises(ConfigError, match=told):
        write_dataframe(
            spark.range(1).selectExpr(
                "id", *expression.split(", ") if "AS a, " in expression else [expression]
            ),
            refuses_bad,
            **options,
        )


# -- tables that are altered between two jobs ------------------------------------------------------

FIRST = "id int, i int, d date, v varchar(5), n bigint NOT NULL, a int, b text"
CHANGES = (
    "ALTER TABLE lasting ALTER i TYPE numeric, ALTER d TYPE timestamp, ALTER v TYPE "
    "text, ALTER n DROP NOT NULL",
    "ALTER TABLE lasting RENAME a TO x",
    "ALTER TABLE lasting RENAME x TO a",
)
LEVELS: dict[str, dict[str, Any]] = {
    "at_least_once": {},
    "bucket": {"delivery": "bucket", "app_id": "lasting", "key": "id", "buckets": 2},
    "atomic": {"delivery": "atomic", "app_id": "lasting"},
}


@pytest.mark.parametrize(
    "level", ["at_least_once", "bucket", pytest.param("atomic", marks=pytest.mark.long)]
)
def test_a_sink_that_a_worker_keeps_open_writes_into_the_table_as_it_is_now(
    spark: Any, embedded_postgres: Any, level: str
) -> None:
    """The second job of a worker after a change of type, and the third after a change of table: no
    value is truncated, and no row is refused.
    """
    dsn = embedded_postgres.dsn
    query(dsn, f"DROP TABLE IF EXISTS lasting, sluicegate_ledger; CREATE TABLE lasting ({FIRST})")
    sink = PostgresSink(dsn, table="lasting", columns=("id", "i", "d", "v", "n", "a", "b"))
    jobs = (
        ("7 AS i", "DATE'2026-01-01' AS d", "'short' AS v", "1L AS n"),
        (
            "0.75D AS i",
            "TIMESTAMP_NTZ'2026-01-01 10:20:30' AS d",
            "'longer than five' AS v",
            "cast(NULL AS bigint) AS n",
        ),
        ("0.25D AS i", "'text' AS d", "3L AS v", "true AS n"),
    )
    for version, job in enumerate(jobs):
        df = spark.range(0, 60, numPartitions=2).selectExpr(
            "cast(id AS int) AS id", *job, "1 AS a", "'b' AS b"
        )
        options: dict[str, Any] = (
            LEVELS[level] if level == "at_least_once" else {**LEVELS[level], "version": version}
        )
        assert write_dataframe(df, sink, **options).delivered == 60
        if version == 0:
            for change in CHANGES:
                query(dsn, change)
        if version == 1:
            moment = dt.datetime(2026, 1, 1, 10, 20, 30)
            found = query(dsn, "SELECT DISTINCT i, d, v, n FROM lasting WHERE n IS NULL")
            assert found == [(Decimal("0.75"), moment, "longer than five", None)]
            query(
                dsn,
                "DROP TABLE lasting; CREATE TABLE lasting (b text, a int, id int, i float8, d "
                "text, v bigint, n boolean)",
            )
    assert query(dsn, "SELECT DISTINCT i, d, v, n, count(*) FROM lasting GROUP BY i, d, v, n") == [
        (0.25, "text", 3, True, 60)
    ]
