"""P-T19: the value returned for each type, and types refused before a row is written."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import socket
import uuid
from decimal import Decimal
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg
import pytest

pytest.importorskip("pyspark")

from sluicegate import Batch, ConfigError, DeadLetter, FanOut, Timeout, UnavailableError, stack
from sluicegate.postgres import PostgresSink
from sluicegate.sinks import MemorySink
from sluicegate.spark import write_dataframe

if TYPE_CHECKING:
    from pathlib import Path

ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
MOMENT = dt.datetime(2026, 3, 29, 1, 30, 0, 250_000, tzinfo=dt.UTC)
COLUMNS: dict[str, tuple[str, str, Any]] = {
    "bo": ("boolean", "true", True),
    "i1": ("smallint", "cast(-7 AS tinyint)", -7),
    "i2": ("smallint", "cast(-32768 AS smallint)", -32_768),
    "i4": ("integer", "cast(2147483647 AS int)", 2**31 - 1),
    "i8": ("bigint", "-9223372036854775808", -(2**63)),
    "i4_of_i8": ("integer", "12", 12),
    "f4": ("real", "cast(1.5 AS float)", 1.5),
    "f8": ("double precision", "cast(1e300 AS double)", 1e300),
    "nu": ("numeric(12,3)", "cast(-0.125 AS decimal(12,3))", Decimal("-0.125")),
    "nu38": (
        "numeric",
        "cast(123456789012345678901234567890.5 AS decimal(38,1))",
        Decimal("123456789012345678901234567890.5"),
    ),
    "tx": ("text", "'schön'", "schön"),
    "vc": ("varchar(5)", "'abcde'", "abcde"),
    "by": ("bytea", "X'00FF'", b"\0\xff"),
    "da": ("date", "DATE'1999-12-31'", dt.date(1999, 12, 31)),
    "ts": ("timestamptz", "TIMESTAMP'2026-03-29 01:30:00.25+00:00'", MOMENT),
    "tn": ("timestamp", "TIMESTAMP_NTZ'1969-07-20 20:17:40'", dt.datetime(1969, 7, 20, 20, 17, 40)),
    "iv": (
        "interval",
        "INTERVAL '1 02:03:04' DAY TO SECOND",
        dt.timedelta(days=1, hours=2, minutes=3, seconds=4),
    ),
    "ui": ("uuid", f"'{ID}'", ID),
    "tv": ("tsvector", "'a b'", "'a' 'b'"),
    "ma": ("macaddr[]", "array('08:00:2b:01:02:03', null)", ["08:00:2b:01:02:03", None]),
    "js": ("jsonb", "to_json(named_struct('a', array(1, null)))", '{"a": [1, null]}'),
    "ai": ("integer[]", "array(1, null, 3)", [1, None, 3]),
    "at": ("text[]", "array('a', '')", ["a", ""]),
    "an": ("numeric[]", "array(cast(1.5 AS decimal(4,1)))", [Decimal("1.5")]),
    "ats": ("timestamptz[]", "array(TIMESTAMP'2026-03-29 01:30:00.25+00:00')", [MOMENT]),
}


def on(dsn: str, *statements: str) -> list[Any]:
    """Run statements; return the result of the last one."""

    async def run() -> list[Any]:
        con = await asyncpg.connect(dsn)
        try:
            for statement in statements[:-1]:
                await con.execute(statement)
            return [tuple(row) for row in await con.fetch(statements[-1])]
        finally:
            await con.close()

    return asyncio.run(run())


def test_every_type_comes_back_with_nulls_and_without(spark: Any, embedded_postgres: Any) -> None:
    """P-T19."""
    table = ", ".join(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items())
    on(
        embedded_postgres.dsn,
        "DROP TABLE IF EXISTS kinds",
        f"CREATE TABLE kinds (n integer, {table})",
        "SELECT 1",
    )
    values = [
        f"CASE WHEN id % 2 = 0 THEN {value} END AS {name}"
        for name, (_, value, _) in COLUMNS.items()
    ]
    df = spark.range(0, 4, numPartitions=1).selectExpr("cast(id AS int) AS n", *values)
    sink = PostgresSink(embedded_postgres.dsn, table="kinds", columns=("n", *COLUMNS))
    report = write_dataframe(df, sink)
    assert (report.delivered, report.dead_letters) == (4, 0)
    found = on(embedded_postgres.dsn, "SELECT * FROM kinds ORDER BY n")
    expected = tuple(value for _, _, value in COLUMNS.values())
    for number, row in enumerate(found):
        js = list(COLUMNS).index("js") + 1
        row = tuple(
            json.loads(value) if place == js and value is not None else value
            for place, value in enumerate(row)
        )
        wanted = tuple(
            json.loads(value) if place == js - 1 else value for place, value in enumerate(expected)
        )
        assert row == ((number, *wanted) if number % 2 == 0 else (number, *[None] * len(wanted)))


NESTED = {
    "named_struct('a', 1)": r"column 'v' \(struct<a:int>\) no column takes nested values; "
    r"write to_json\(v\)",
    "map('a', 1)": r"column 'v' \(map<string,int>\) no column takes nested values; write "
    r"to_json\(v\)",
    "array(named_struct('a', 1))": r"column 'v' \(array<struct<a:int>>\) no column takes",
    "parse_json('1')": r"column 'v' \(variant\) variants are sent as bytes that no sink can read; "
    r"write to_json\(v\)",
    "INTERVAL '1' MONTH": r"column 'v' \(interval month\) Arrow does not support it; write "
    r"cast\(v AS string\)",
}


@pytest.mark.parametrize("expression", NESTED)
def test_what_no_table_takes_is_refused_without_a_table(spark: Any, expression: str) -> None:
    """P-T19: detected in the stack by the types alone; there is no server at this address."""
    sink = stack(
        FanOut(
            PostgresSink("postgresql://nowhere.invalid/x", table="t", columns=("id", "v")),
            MemorySink(),
        ),
        Timeout(5.0),
    )
    with pytest.raises(ConfigError, match=NESTED[expression]):
        write_dataframe(spark.range(1).selectExpr("id", f"{expression} AS v"), sink, check=False)


def test_all_columns_are_told_at_once(spark: Any) -> None:
    sink = PostgresSink("postgresql://nowhere.invalid/x", table="t", columns=("a", "b", "c"))
    df = spark.range(1).selectExpr("INTERVAL '1' MONTH AS a", "INTERVAL '1' YEAR AS b", "id")
    with pytest.raises(ConfigError) as told:
        write_dataframe(df, sink)
    _, *lines = str(told.value).split("\n")
    assert [line.split()[:2] for line in sorted(lines)] == [["column", f"'{c}'"] for c in "abc"]


def test_columns_that_the_sink_does_not_write_may_be_anything(
    spark: Any, embedded_postgres: Any
) -> None:
    on(
        embedded_postgres.dsn,
        "DROP TABLE IF EXISTS kinds",
        "CREATE TABLE kinds (id bigint)",
        "CREATE TABLE IF NOT EXISTS kinds_letters (message text)",
        "SELECT 1",
    )
    df = spark.range(3).selectExpr("id", "named_struct('a', id) AS other")
    letters = DeadLetter(
        PostgresSink(
            embedded_postgres.dsn,
            table="kinds_letters",
            columns=("message",),
            row=lambda record: (record.message,),
        )
    )
    assert (
        write_dataframe(
            df, stack(PostgresSink(embedded_postgres.dsn, table="kinds", columns=("id",)), letters)
        ).delivered
        == 3
    )


def nobody_may_call(batch: Batch[Any]) -> None:
    raise AssertionError("a row was written")


MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "table": (
        {"table": "kind"},
        ConfigError,
        "table='kind': there is no such table; there are 'kinds'",
    ),
    "column": (
        {"columns": ("id", "v", "w")},
        ConfigError,
        r"columns=\['w'\]: .* has no such column; it has 'id', 'v'",
    ),
    "user": ({"user": "nobody"}, ConfigError, 'password authentication failed for user "nobody"'),
    "database": ({"path": "/elsewhere"}, ConfigError, 'database "elsewhere" does not exist'),
    "port": ({"port": 0}, UnavailableError, "."),
    "type": (
        {},
        ConfigError,
        r"column 'v' \(double\) does not fit into integer; cast it first",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_fail_on_the_driver_before_a_row_is_written(
    spark: Any, embedded_postgres: Any, mistake: str
) -> None:
    """P-T19, contract 4: the fault of the destination and its remedy are reported before the job;
    the other branch has no row.
    """
    on(
        embedded_postgres.dsn,
        "DROP TABLE IF EXISTS kinds",
        "CREATE TABLE kinds (id bigint, v integer)",
        "SELECT 1",
    )
    options, error, told = MISTAKES[mistake]
    dsn = _dsn(embedded_postgres.dsn, options)
    wrong = PostgresSink(
        dsn, table=options.get("table", "kinds"), columns=options.get("columns", ("id", "v"))
    )
    df = spark.range(3).selectExpr("id", "id / 2 AS v", "id AS w")
    with pytest.raises(error, match=told) as raised:
        write_dataframe(df, FanOut(nobody_may_call, wrong))
    assert ("check=False" in " ".join(getattr(raised.value, "__notes__", []))) == (
        error is UnavailableError
    )
    assert on(embedded_postgres.dsn, "SELECT count(*) FROM kinds") == [(0,)]


def _dsn(dsn: str, options: dict[str, Any]) -> str:
    parts = urlsplit(dsn)
    if "port" in options:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return f"postgresql://127.0.0.1:{free.getsockname()[1]}/x"
    user, _, place = parts.netloc.rpartition("@")
    user = f"{options['user']}:secret" if "user" in options else user
    return parts._replace(netloc=f"{user}@{place}", path=options.get("path", parts.path)).geturl()


def test_a_caller_with_a_running_loop_may_write(spark: Any, embedded_postgres: Any) -> None:
    """As in a notebook."""
    on(
        embedded_postgres.dsn,
        "DROP TABLE IF EXISTS kinds",
        "CREATE TABLE kinds (id bigint)",
        "SELECT 1",
    )
    sink = PostgresSink(embedded_postgres.dsn, table="kinds", columns=("id",))

    async def cell() -> int:
        async with sink:  # open here, too
            return write_dataframe(spark.range(3), sink).delivered

    assert asyncio.run(cell()) == 3


def test_without_a_check_the_driver_opens_nothing(spark: Any, tmp_path: Path) -> None:
    class Opens:
        async def __aenter__(self) -> None:
            NamedTemporaryFile(dir=tmp_path, delete=False).close()

        async def __aexit__(self, *_: object) -> None:
            pass

        async def write(self, batch: Batch[Any]) -> None:
            pass

    df = spark.range(1, numPartitions=1)
    write_dataframe(df, Opens(), check=False)
    assert len(list(tmp_path.iterdir())) == 1
    write_dataframe(df, Opens())
    assert len(list(tmp_path.iterdir())) == 3
