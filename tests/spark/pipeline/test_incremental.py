"""Runs that read only new rows, with their position in the destination."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("pyspark")
from tests.spark.sql import query

from sluicegate import ConfigError
from sluicegate.spark import DeadLettersError, Pipeline, PipelineError
from sluicegate.spark.pipeline import Destination, Incremental, Source, Step, Write

if TYPE_CHECKING:
    from pathlib import Path

BY_COLUMN = Incremental(column="at")


@pytest.fixture
def dsn(embedded_postgres: Any) -> str:
    """A server with empty tables."""
    found = str(embedded_postgres.dsn)
    tables = "orders, even"
    query(found, f"DROP TABLE IF EXISTS {tables}, sluicegate_ledger, sluicegate_progress")
    query(found, "CREATE TABLE orders (id bigint, at timestamptz)")
    query(found, "CREATE TABLE even (id bigint, at timestamptz)")
    return found


def put(spark: Any, folder: Path, first: int, last: int) -> None:
    """Add rows, in one file; the second of each is its number."""
    rows = spark.range(first, last + 1, numPartitions=1)
    rows.selectExpr("id", "timestamp_seconds(1800000000 + id) AS at").write.mode("append").parquet(
        str(folder / "in")
    )


def pipeline(folder: Path, dsn: str, **changes: Any) -> Pipeline:
    source = Source(format="parquet", path=str(folder / "in"), incremental=BY_COLUMN)
    parts: dict[str, Any] = {
        "name": "orders",
        "sources": {"read": source},
        "sinks": {name: sink(dsn, name) for name in ("orders", "even")},
        "write": Write(view="read", sink="orders", delivery="atomic"),
        **changes,
    }
    return Pipeline(**parts)


def sink(dsn: str, table: str, **arguments: Any) -> Destination:
    return Destination(kind="postgres", arguments={"dsn": dsn, "table": table, **arguments})


def ids(dsn: str, table: str = "orders") -> list[int]:
    return [number for (number,) in query(dsn, f"SELECT id FROM {table} ORDER BY id")]


@pytest.mark.parametrize("delivery", ["atomic", "at_least_once"])
def test_a_run_reads_the_rows_above_the_last_position(
    spark: Any, dsn: str, tmp_path: Path, delivery: str
) -> None:
    """A run without new rows writes nothing. The time zone of the session does not matter."""
    put(spark, tmp_path, 1, 10)
    declared = pipeline(tmp_path, dsn)
    declared = replace(declared, write=Write(view="read", sink="orders", delivery=delivery))  # type: ignore[arg-type]
    assert declared.run(spark).rows == 10
    moved = replace(
        declared, spark=replace(declared.spark, conf={"spark.sql.session.timeZone": "Asia/Tokyo"})
    )
    assert moved.run(spark).writes == 0
    put(spark, tmp_path, 11, 13)
    assert moved.run(spark).rows == 3
    assert declared.run(spark).writes == 0
    assert ids(dsn) == [*range(1, 14)]
    stored = "SELECT application, source, version FROM sluicegate_progress"
    assert query(dsn, stored) == [("orders/read", "read", 2)]


def test_rows_without_a_value_are_told(
    spark: Any, dsn: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By every run, also one without new rows."""
    put(spark, tmp_path, 1, 2)
    empty = spark.range(2).selectExpr("id", "cast(NULL AS timestamp) AS at")
    empty.write.mode("append").parquet(str(tmp_path / "in"))
    declared = pipeline(tmp_path, dsn)
    assert [declared.run(spark).writes for _ in range(2)] == [1, 0]
    assert ids(dsn) == [1, 2]
    assert caplog.messages.count("2 rows without a value of at: they are never read") == 2


def test_a_run_reads_the_files_that_no_run_has_read(spark: Any, dsn: str, tmp_path: Path) -> None:
    """Whatever their names are, and with the columns of their folders."""
    query(dsn, "ALTER TABLE orders ADD day text")
    source = Source(
        format="csv",
        path=str(tmp_path / "in"),
        schema="id BIGINT, at TIMESTAMP, day STRING",
        incremental=Incremental(files=True),
    )
    declared = pipeline(tmp_path, dsn, sources={"read": source})
    file_names = ["a", "b c", "d%20e", "f#g", "h[1]", "größe", "x{1,2}", "q?r"]
    folder = tmp_path / "in" / "day=täglich 1"
    folder.mkdir(parents=True)
    for number, name in enumerate(file_names):
        (folder / f"{name}.csv").write_text(f"{number},2026-01-01 00:00:00\n")
        assert declared.run(spark).rows == 1, name
    assert ids(dsn) == [*range(len(file_names))]
    assert query(dsn, "SELECT DISTINCT day FROM orders") == [("täglich 1",)]
    with pytest.raises(ConfigError, match="since='soon': must be a time"):
        declared.run(spark, since="soon")
    (folder / "a.csv").unlink()
    assert declared.run(spark).writes == 0
    assert "files changed after 2200-01-01\n" in declared.dry_run(spark, since="2200-01-01")
    assert declared.run(spark, since="2020-01-01").rows == len(file_names) - 1
    assert query(dsn, "SELECT count(*) FROM sluicegate_progress") == [(len(file_names) - 1,)]


ARRIVED = """
from pathlib import Path
from sluicegate.postgres import PostgresSink
def arriving(folder, dsn):
    number = len([*Path(folder).iterdir()])
    Path(folder, f"{number}.csv").write_text(f"{number},2026-01-01\\n")
    return PostgresSink(dsn, table="orders", columns=("id", "at"))
"""


def test_a_file_that_arrives_while_a_run_begins_is_read_once(
    spark: Any, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives whenever the sink is built: also between the listing and the reading."""
    (tmp_path / "arrived.py").write_text(ARRIVED)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "in"
    folder.mkdir()
    source = Source(
        format="csv",
        path=str(folder),
        schema="id BIGINT, at DATE",
        incremental=Incremental(files=True),
    )
    arguments = {"factory": "arrived:arriving", "folder": str(folder), "dsn": dsn}
    sinks = {"orders": Destination(kind="python", arguments=arguments)}
    declared = pipeline(tmp_path, dsn, sources={"read": source}, sinks=sinks)
    assert [declared.run(spark).rows for _ in range(3)] == [1, 2, 2]
    assert ids(dsn) == [*range(5)]


def test_since_reads_again(spark: Any, dsn: str, tmp_path: Path) -> None:
    put(spark, tmp_path, 1, 10)
    declared = pipeline(
        tmp_path,
        dsn,
        sources={
            "read": Source(
                format="parquet",
                path=str(tmp_path / "in"),
                incremental=Incremental(column="id", until="8"),
            )
        },
    )
    assert declared.run(spark).rows == 8
    assert declared.run(spark, since="5").rows == 3
    assert declared.run(spark).writes == 0
    with pytest.raises(ConfigError, match="since='soon': must be a value of id, which is a bigint"):
        declared.run(spark, since="soon")


def test_a_position_that_spark_refuses_is_a_mistake_with_its_place(
    spark: Any, dsn: str, tmp_path: Path
) -> None:
    """Also for a plan, which reads nothing."""
    put(spark, tmp_path, 1, 2)
    wrong = Incremental(column="att", until="nothing(at)")
    source = Source(format="parquet", path=str(tmp_path / "in"), incremental=wrong)
    declared = pipeline(tmp_path, dsn, sources={"read": source})
    for act in (declared.run, declared.plan):
        with pytest.raises(PipelineError) as caught:
            act(spark)
        assert [each.path for each in caught.value.mistakes] == [
            ("sources", "read", "incremental", "column"),
            ("sources", "read", "incremental", "until"),
        ]


def test_rows_and_position_commit_together(spark: Any, dsn: str, tmp_path: Path) -> None:
    """A failed publication leaves neither; the next run reads the rows again."""
    query(dsn, "ALTER TABLE orders ADD UNIQUE (id)")
    put(spark, tmp_path, 1, 10)
    declared = pipeline(tmp_path, dsn)
    declared.run(spark)
    query(dsn, "INSERT INTO orders VALUES (12, now())")
    put(spark, tmp_path, 11, 13)
    with pytest.raises(Exception, match="duplicate key"):
        declared.run(spark)
    assert ids(dsn) == [*range(1, 11), 12]
    query(dsn, "DELETE FROM orders WHERE id = 12")
    assert declared.run(spark).rows == 3
    assert ids(dsn) == [*range(1, 14)]


def several(folder: Path, dsn: str) -> Pipeline:
    return pipeline(
        folder,
        dsn,
        steps={"halved": Step(sql="SELECT * FROM read WHERE id % 2 = 0")},
        write=[
            Write(view="read", sink="orders", delivery="atomic"),
            Write(view="halved", sink="even"),
        ],
    )


def test_several_writes_share_one_reading(
    spark: Any, spark_reads_postgres: None, dsn: str, tmp_path: Path
) -> None:
    """The source counts the rows that it returns: once for the upper bound, once for both writes.
    It returns no earlier row. Its time zone is not that of the session.
    """
    query(dsn, "DROP TABLE IF EXISTS made; DROP SEQUENCE IF EXISTS readings")
    query(
        dsn,
        "CREATE TABLE made AS SELECT id, to_timestamp(1800000000 + id) AS at FROM generate_series(1, 10) id",
    )
    query(dsn, "CREATE SEQUENCE readings")
    where = urlsplit(dsn)
    reading = "SELECT id, at, nextval('readings') AS n FROM made"
    source = Source(
        format="jdbc",
        options={
            "url": f"jdbc:postgresql://{where.hostname}:{where.port}{where.path}",
            "driver": "org.postgresql.Driver",
            "user": where.username or "",
            "password": where.password or "",
            "query": reading,
        },
        incremental=BY_COLUMN,
    )
    select = "SELECT id, at FROM read WHERE id % 2 = 0"
    declared = several(tmp_path, dsn)
    steps = {"every": Step(sql="SELECT id, at FROM read"), "halved": Step(sql=select)}
    first = replace(declared.writes["write", 0], view="every")
    settings = replace(declared.spark, conf={"spark.sql.session.timeZone": "Asia/Tokyo"})
    declared = replace(
        declared,
        sources={"read": source},
        steps=steps,
        write=[first, declared.writes["write", 1]],
        spark=settings,
    )
    for begin, end in ((0, 10), (10, 14)):
        query(
            dsn,
            f"INSERT INTO made SELECT id, to_timestamp(1800000000 + id) FROM generate_series({max(begin, 10) + 1}, {end}) id",
        )
        query(dsn, "ALTER SEQUENCE readings RESTART")
        declared.run(spark)
        assert query(dsn, "SELECT last_value FROM readings") == [(2 * (end - begin),)]
        assert ids(dsn) == [*range(1, end + 1)]
        assert ids(dsn, "even") == [*range(2, end + 1, 2)]


def test_a_write_that_failed_catches_up_alone(spark: Any, dsn: str, tmp_path: Path) -> None:
    """The write before it has committed its rows and its own position."""
    query(dsn, "ALTER TABLE even ADD CHECK (id <> 14)")
    declared = several(tmp_path, dsn)
    put(spark, tmp_path, 1, 10)
    assert (declared.run(spark).rows, ids(dsn, "even")) == (15, [2, 4, 6, 8, 10])
    put(spark, tmp_path, 11, 14)
    with pytest.raises(DeadLettersError):
        declared.run(spark)
    query(dsn, "DELETE FROM even WHERE id > 10")
    query(dsn, "ALTER TABLE even DROP CONSTRAINT even_id_check")
    put(spark, tmp_path, 15, 16)
    reports: list[Any] = []
    assert declared.run(spark, on_report=reports.append).rows == 2 + 3
    assert ids(dsn) == [*range(1, 17)]
    assert ids(dsn, "even") == [*range(2, 17, 2)]
    assert declared.run(spark).writes == 0


def test_a_recreated_table_is_refused(spark: Any, dsn: str, tmp_path: Path) -> None:
    """It lacks the rows before the position; the error has the statements for both ways out."""
    for last in (5, 10):
        put(spark, tmp_path, last - 4, last)
        pipeline(tmp_path, dsn).run(spark)
    query(dsn, "DROP TABLE orders; CREATE TABLE orders (id bigint, at timestamptz)")
    with pytest.raises(ConfigError, match=r'earlier table "public"\."orders"') as caught:
        pipeline(tmp_path, dsn).run(spark)
    repair = str(caught.value).partition("from the beginning: ")[2].partition(";")[0]
    query(dsn, repair)
    assert [pipeline(tmp_path, dsn).run(spark).delivered for _ in range(2)] == [10, 0]
    assert ids(dsn) == [*range(1, 11)]


def test_a_dry_run_counts_and_creates_nothing(spark: Any, dsn: str, tmp_path: Path) -> None:
    put(spark, tmp_path, 1, 10)
    declared = several(tmp_path, dsn)
    sinks = {
        "orders": sink(dsn, "new", create_table="if_missing"),
        "even": declared.sinks["even"],
    }
    text = replace(declared, sinks=sinks).dry_run(spark)
    assert text.splitlines() == [
        "orders: a run would",
        "  read    read: 10 rows, at above the beginning up to 2027-01-15 08:00:10.000000Z",
        "  write   read to orders: 10 rows, atomic as run 1",
        "  write   halved to even: 5 rows, at_least_once as run 1",
    ]
    assert query(dsn, "SELECT to_regclass('new'), to_regclass('sluicegate_progress')") == [
        (None, None)
    ]
    declared.run(spark)
    assert "read: 0 rows, none with at above 2027-01-15" in declared.dry_run(spark)


def test_a_dry_run_tells_why_it_cannot_read_a_position(
    spark: Any, dsn: str, tmp_path: Path
) -> None:
    """Only a table that the run would create has none. A column that it would add is no obstacle."""
    put(spark, tmp_path, 1, 10)
    query(dsn, "ALTER TABLE orders DROP at")
    grows = {"orders": sink(dsn, "orders", on_new_column="add")}
    assert "10 rows" in pipeline(tmp_path, dsn, sinks=grows).dry_run(spark)
    assert query(
        dsn, "SELECT count(*) FROM information_schema.columns WHERE table_name = 'orders'"
    ) == [(1,)]
    with pytest.raises(ConfigError, match=r"columns=\['at'\]"):
        pipeline(tmp_path, dsn).dry_run(spark)
    with pytest.raises(ConfigError, match=r"table='new'.*no such table"):
        pipeline(tmp_path, dsn, sinks={"orders": sink(dsn, "new")}).dry_run(spark)
    pipeline(tmp_path, dsn, sinks=grows).run(spark)
    query(dsn, "DROP TABLE orders; CREATE TABLE orders (id bigint)")
    with pytest.raises(ConfigError, match="earlier table"):
        pipeline(tmp_path, dsn, sinks=grows).dry_run(spark)


def test_mistakes_of_incremental_sources_are_found_without_spark(tmp_path: Path) -> None:
    wrong = pipeline(
        tmp_path,
        "postgresql://h/d",
        sources={
            "read": Source(
                format="jdbc", incremental=Incremental(column="at", files=True, until="now()")
            ),
            "more": Source(format="jdbc", incremental=Incremental(files=True, until="now()")),
        },
        steps={"both": Step(sql="SELECT id FROM read JOIN more USING (id)")},
        sinks={
            "orders": sink("postgresql://h/d", "orders"),
            "lines": Destination(kind="file", arguments={"path": "x"}),
        },
        write=[
            Write(view="both", sink="orders", mode="overwrite", delivery="atomic", version=1),
            Write(view="both", sink="lines"),
            Write(view="both", sink="lines"),
            Write(view="both", sink="orders", key="id", delivery="bucket", app_id="x"),
        ],
    )
    assert [str(each) for each in wrong.mistakes({})] == [
        "sources.read.incremental: must have either column or files = true",
        "sources.read.incremental.files: needs one of csv, json, orc, parquet, text",
        "sources.more.incremental.files: needs one of csv, json, orc, parquet, text",
        "sources.more.incremental.until: has no meaning without column",
        "write[0].version: cannot be set with an incremental source: the runs are numbered",
        "write[0].mode: cannot be 'overwrite' with an incremental source: a run has only the new "
        "rows",
        "write[3].delivery: cannot be 'bucket' with an incremental source: a position commits with "
        "all rows ('atomic') or after them ('at_least_once')",
        "write[2].app_id: 'lines' has a write of this name already; set another one",
        "write[1].sink: 'lines' cannot store the position of an incremental source; use a postgres "
        "sink",
        "write[2].sink: 'lines' cannot store the position of an incremental source; use a postgres "
        "sink",
    ]


def test_a_secret_comes_from_a_file_and_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("much-too-secret\n")
    secret = f"postgresql://me:${{file:{tmp_path}/pw}}@h/d"
    declared = pipeline(tmp_path, secret)
    assert declared.mistakes({}) == ()
    assert declared.without_secrets("it is much-too-secret", {}) == (
        f"it is ${{file:{tmp_path}/pw}}"
    )
    (tmp_path / "pw").unlink()
    assert {each.text for each in declared.mistakes({})} == {
        f"the file {tmp_path}/pw cannot be read: No such file or directory"
    }
    unset = pipeline(tmp_path, "${conf:spark.no.such}").mistakes({})
    assert {each.text for each in unset} == {
        "Spark has no setting spark.no.such; pass it by spark-submit or in a session"
    }


def test_a_secret_comes_from_sparks_settings(spark: Any, dsn: str, tmp_path: Path) -> None:
    """Those of the session that runs it, whichever is active."""
    spark.conf.set("spark.pg.password.dsn", dsn)
    spark.newSession().sql("SELECT 1")
    put(spark, tmp_path, 1, 3)
    assert pipeline(tmp_path, "${conf:spark.pg.password.dsn}").run(spark).rows == 3
    spark.conf.unset("spark.pg.password.dsn")
