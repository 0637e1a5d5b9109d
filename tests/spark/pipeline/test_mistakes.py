"""All mistakes in a pipeline are found at once, with their paths, without Spark."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluicegate.sinks import MemorySink
from sluicegate.spark import Pipeline, PipelineError
from sluicegate.spark.pipeline import Destination, Layer, Source, Step, Stream, Watermark, Write

if TYPE_CHECKING:
    from collections.abc import Mapping

EXAMPLE = Path(__file__).parents[3] / "examples" / "pipelines" / "flights.toml"
SET = {
    "FLIGHTS": "flights.csv",
    "PG_DSN": "postgresql://me:much-too-secret@host/db",
    "REFUSED": "refused.jsonl",
}

BAD = """\
nam = "x"

[sources.flights]
format = "csv"
paht = "x"
dedupe = 5

[steps.a]
sql = "SELECT x FROM b"
[steps.b]
sql = "SELECT y FROM a JOIN flihgts"
[steps.c]
sql = "SELEC y FROM a"

[write]
view = "bb"
sink = "aircaft"
order_by = "q"
delivery = "bucketed"
chunk_rows = 0

[stream]
trigger = "often"

[sinks.aircraft]
kind = "postgres"
dsn = "${NOT_SET_ANYWHERE}"
table = 5
stages = "x"
conflict_colums = ["tailnum"]
pool_size = 0
stack = [
  { kind = "timeot", seconds = 20 },
  { kind = "retry", attempts = 0, max_seconds = "x", backoff = { base = -1 } },
  { kind = "dead_letter", target = "other" },
  { kind = "dead_letter", target = "aircraft" },
  { kind = "rate_limit" },
]
[sinks.f]
kind = "file"
[sinks.g]
kind = "fan_out"
sinks = ["f", "nn"]
"""
FOUND = """\
: nam: is unknown here; did you mean 'name'?
: name: is missing
: sources.flights.paht: is unknown here; did you mean 'path'?
: sources.flights.dedupe: Expected `str | array`, got `int`
: write.delivery: Invalid enum value 'bucketed'; must be one of 'at_least_once', 'atomic', 'bucket'
: stream.checkpoint: is missing
: sinks.aircraft.dsn: the environment variable NOT_SET_ANYWHERE is not set
: sources.flights.path: is missing, and csv needs it
: sources.flights.schema: is missing: csv in a stream does not define its columns
: steps.a.sql: reads b, but a step reads only views before it
: steps.b.sql: reads flihgts, but there is no such view; did you mean 'flights'?
: steps.c.sql: cannot be read as SQL: *
: write.view: there is no view 'bb'; did you mean 'b'?
: write.sink: there is no sink 'aircaft'; did you mean 'aircraft'?
: write.order_by: has no meaning without key
: write.chunk_rows: chunk_rows=0: must be a whole number of at least 1
: sinks.aircraft.conflict_colums: is unknown to postgres; did you mean 'conflict_columns'?
: sinks.aircraft.stages: stages='x': must be one of 'logged', 'unlogged'
: sinks.aircraft.table: table=5: must be a name: text that is not empty, without NUL
: sinks.aircraft.pool_size: pool_size=0: must be a whole number of at least 1
: sinks.aircraft.stack[0].kind: 'timeot' is not a decorator; did you mean 'timeout'?
: sinks.aircraft.stack[1].backoff.base: base=-1: must be at least 0 seconds (a number or a timedelta)
: sinks.aircraft.stack[1].attempts: attempts=0: must be a whole number of at least 1
: sinks.aircraft.stack[1].max_seconds: max_seconds='x': must be more than 0 seconds (a number or a timedelta)
: sinks.aircraft.stack[2].target: there is no sink 'other'; known: aircraft, f, g
: sinks.aircraft.stack[3].target: a cycle of sinks: aircraft -> aircraft
: sinks.aircraft.stack[4].items_per_second: is missing
: sinks.f.path: is missing
: sinks.g.sinks[1]: there is no sink 'nn'; known: aircraft, f, g
: stream.trigger: 'often' is neither a duration such as '10 seconds' nor 'available_now'
"""


def test_every_mistake_has_its_path_and_what_may_be_meant(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(BAD)
    with pytest.raises(PipelineError) as caught:
        Pipeline.read(file)
    found = str(caught.value).replace(str(file), "").splitlines()
    for line, expected in zip(sorted(found), sorted(FOUND.splitlines()), strict=True):
        assert line.startswith(expected[:-1]) if expected.endswith("*") else line == expected


def test_a_text_that_is_no_toml_says_where(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("a = 1\nb = = 2\n")
    with pytest.raises(
        PipelineError, match=r"bad\.toml: is not valid TOML: Invalid value \(at line 2, column 5\)"
    ):
        Pipeline.read(file)


def test_the_example_is_right_once_its_variables_are_set() -> None:
    pipeline = Pipeline.read(EXAMPLE)
    assert pipeline.mistakes(SET) == ()
    found = [str(mistake) for mistake in pipeline.mistakes({})]
    assert [line.rpartition(": ")[2] for line in found] == [
        f"the environment variable {name} is not set" for name in SET
    ]
    assert f"{EXAMPLE}: sinks.aircraft.dsn: " in found[1]


def declared(**changes: object) -> Pipeline:
    parts: dict[str, object] = {
        "name": "test",
        "sources": {"numbers": Source(format="rate")},
        "steps": {
            "even": Step(sql="SELECT value, timestamp AS at FROM numbers WHERE value % 2 = 0")
        },
        "sinks": {"memory": MemorySink()},
        "write": Write(view="even", sink="memory"),
        **changes,
    }
    return Pipeline(**parts)  # type: ignore[arg-type]


def said(pipeline: Pipeline, environment: Mapping[str, str] | None = None) -> list[str]:
    return [str(mistake) for mistake in pipeline.mistakes(environment)]


STREAM = Stream(checkpoint="/tmp/c")
TOPIC = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
POSTGRES = {"dsn": "postgresql://h/d", "table": "t"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"name": 5}, ["name: Expected `str`, got `int`"]),
        (
            {"sources": {}},
            [
                "sources: must have at least one",
                "steps.even.sql: reads numbers, but there is no such view; known: none",
            ],
        ),
        (
            {"sources": {"numbers": Source(format="csv", path="x")}},
            ["sources.numbers.schema: is missing: csv does not define its columns"],
        ),
        (
            {"sources": {"numbers": Source(format="parquet", path="x")}, "stream": STREAM},
            ["sources.numbers.schema: is missing: parquet in a stream does not define its columns"],
        ),
        (
            {"sources": {"numbers": Source(format="kafka")}},
            [
                "sources.numbers.options.kafka.bootstrap.servers: is missing, and kafka needs it",
                "sources.numbers.options: must have one of subscribe, subscribePattern, assign",
            ],
        ),
        (
            {"sources": {"numbers": Source(format="rate", value="json", schema="id INT")}},
            ["sources.numbers.value: has no meaning here: only kafka has values"],
        ),
        (
            {"sources": {"numbers": Source(format="kafka", options=TOPIC, schema="id INT")}},
            ["sources.numbers.value: goes with schema: *"],
        ),
        (
            {"sources": {"numbers": Source(format="kafka", options=TOPIC, value="json")}},
            ["sources.numbers.value: goes with schema: *"],
        ),
        (
            {
                "sources": {
                    "numbers": Source(format="kafka", options=TOPIC, value="avro", schema="id INT")
                }
            },
            ["registry: is missing, and value = 'avro' needs it"],
        ),
        (
            {"sources": {"numbers": Source(format="rate", debezium=True)}},
            ["sources.numbers.debezium: needs value"],
        ),
        (
            {"stream": Stream(checkpoint="/tmp/c", metrics="9464")},
            ["stream.metrics: '9464' is not HOST:PORT, such as '127.0.0.1:9464'"],
        ),
        (
            {"sources": {"numbers": Source(format="rate", static=True)}, "stream": STREAM},
            ["sources: all are static: there is nothing to stream"],
        ),
        (
            {"sources": {"numbers": Source(format="rate", static=True)}},
            ["sources.numbers.static: has no meaning without [stream]"],
        ),
        (
            {
                "sources": {
                    "numbers": Source(
                        format="rate", watermark=Watermark(column="timestamp", delay="late")
                    )
                }
            },
            [
                "sources.numbers.watermark: has no meaning without [stream]",
                "sources.numbers.watermark.delay: 'late' is not a duration such as '10 minutes'",
            ],
        ),
        (
            {"sources": {"numbers": Source(format="rate", dedupe="value")}, "stream": STREAM},
            [
                "sources.numbers.dedupe: needs a watermark in a stream, which otherwise must "
                "remember every row forever"
            ],
        ),
        ({"stream": Stream(checkpoint=" ")}, ["stream.checkpoint: must not be empty"]),
        (
            {"steps": {"even": Step(sql="SELECT * FROM even")}},
            ["steps.even.sql: reads even, but a step reads only views before it"],
        ),
        (
            {"steps": {"even": Step(sql="DROP TABLE numbers")}},
            ["steps.even.sql: must be one SELECT, but is another kind of statement (DROP)"],
        ),
        (
            {"steps": {"even": Step(sql="SELECT 1; SELECT 2")}},
            ["steps.even.sql: must be one SELECT, but is 2 statements"],
        ),
        ({"steps": {"even": Step(sql=" ")}}, ["steps.even.sql: must not be empty"]),
        ({"steps": {"even": Step(sql="SOMETHING NEW FROM numbers", unchecked=True)}}, []),
        (
            {"steps": {"Numbers": Step(sql="SELECT 1"), "even": Step(sql="SELECT 2")}},
            ["steps.Numbers: there is another view of this name; *"],
        ),
        (
            {"steps": {"even": Step(sql="SELECT 1"), "1st": Step(sql="SELECT 2")}},
            ["steps.1st: is not a valid view name: *"],
        ),
        (
            {"write": Write(view="even", sink="memory", latest_only=True)},
            ["write.latest_only: has no meaning without key and order_by"],
        ),
        (
            {"write": Write(view="even", sink="memory", key="value", latest_only=True)},
            ["write.latest_only: needs order_by, which defines the last row of a key"],
        ),
        (
            {"write": Write(view="even", sink="memory", delivery="bucket")},
            [
                "write.delivery: 'bucket' needs key: *",
                "write.version: is missing, and delivery = 'bucket' needs it: *",
            ],
        ),
        (
            {
                "write": Write(
                    view="even", sink="memory", key="value", delivery="bucket", version="${DAY}"
                ),
                "sinks": {"memory": print},
            },
            [
                "write.version: the environment variable DAY is not set",
                "write.delivery: 'bucket' cannot be kept: *",
            ],
        ),
        (
            {
                "write": Write(
                    view="even", sink="memory", key="value", delivery="bucket", version="20260131"
                )
            },
            [],
        ),
        (
            {"write": Write(view="even", sink="memory", delivery="atomic")},
            [
                "write.version: is missing, and delivery = 'atomic' needs it: *",
                "write.delivery: 'atomic' cannot be kept: *",
            ],
        ),
        (
            {"write": Write(view="even", sink="memory", mode="overwrite")},
            ["write.mode: 'overwrite' needs delivery = 'atomic': *"],
        ),
        (
            {"write": Write(view="even", sink="memory", key="value", version=-1)},
            ["write.version: -1 is not a whole number of at least 0"],
        ),
        (
            {"write": Write(view="even", sink="memory", key="value", version=1), "stream": STREAM},
            ["write.version: cannot be set in a stream: it is the number of the micro-batch"],
        ),
        (
            {"write": Write(view="even", sink="memory", key="valeu", order_by=["at"])},
            ["write.key: even has no column 'valeu'; did you mean 'value'?"],
        ),
        ({"sinks": {"memory": 5}}, ["sinks.memory: must be a table, or in Python a sink"]),
        (
            {"sinks": {"memory": Destination(kind="memry")}},
            ["sinks.memory.kind: 'memry' is not a sink; *"],
        ),
        (
            {"sinks": {"memory": Destination(kind="fan_out")}},
            ["sinks.memory.sinks: must name at least one sink"],
        ),
        (
            {
                "sinks": {
                    "memory": Destination(kind="postgres", arguments={"dsn": "postgresql://h/d"})
                }
            },
            ["sinks.memory.table: is missing"],
        ),
        (
            {
                "sinks": {
                    "memory": Destination(
                        kind="python", arguments={"factory": "sluicegate.nowhere:make"}
                    )
                }
            },
            ["sinks.memory.factory: cannot be imported: No module named 'sluicegate.nowhere'"],
        ),
        (
            {
                "sinks": {
                    "memory": Destination(
                        kind="python", arguments={"factory": "sluicegate.sinks:MemorySink"}
                    )
                }
            },
            [],
        ),
        (
            {
                "sinks": {
                    "memory": Destination(
                        kind="fan_out", arguments={"sinks": ["a"]}, stack=[Layer(kind="retry")]
                    ),
                    "a": Destination(kind="postgres", arguments=POSTGRES),
                }
            },
            ["sinks.memory.stack[0]: Retry around=*"],
        ),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], expected: list[str]) -> None:
    found = said(declared(**changes))
    for line, rule in zip(found, expected, strict=True):
        assert line.startswith(rule[:-1]) if rule.endswith("*") else line == rule


def test_a_missing_extra_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    sinks = {"memory": Destination(kind="postgres", arguments=POSTGRES)}
    assert said(declared(sinks=sinks)) == [
        "sinks.memory: a connection to PostgreSQL needs the package asyncpg, which is not installed; "
        "the extra 'postgres' provides it: pip install \"sluicegate[postgres]\""
    ]


def test_no_value_of_the_environment_is_ever_shown() -> None:
    """P-T18."""
    environment = {"DSN": "mysql://me:much-too-secret@host", "RATE": "much-too-secret"}
    sinks = {
        "memory": Destination(
            kind="postgres",
            arguments={"dsn": "${DSN}", "table": "t", "stages": "env:RATE"},
            stack=[Layer(kind="retry", arguments={"attempts": "x${RATE}x"})],
        )
    }
    pipeline = declared(sinks=sinks)
    shown = "\n".join([*said(pipeline, environment), pipeline.explain(), repr(pipeline)])
    assert "much-too-secret" not in shown
    assert "stages='${RATE}': must be one of" in shown
    assert "dsn=${DSN}" in pipeline.explain()


def test_a_literal_secret_is_not_explained() -> None:
    """P-T18."""
    source = Source(format="jdbc", options={"url": "jdbc:x", "password": "hush", "dbtable": "t"})
    sinks = {
        "memory": Destination(
            kind="postgres", arguments={**POSTGRES, "dsn": "postgresql://u:hush@h/d"}
        )
    }
    text = declared(sources={"numbers": source}, sinks=sinks).explain()
    assert "hush" not in text
    assert "dbtable='t'" in text


def test_checking_loads_neither_spark_nor_java() -> None:
    """A pipeline can be checked without PySpark, and other commands say that they need it."""
    program = f"""
import sys
sys.modules["pyspark"] = None
from sluicegate.spark import Pipeline
assert Pipeline.read({str(EXAMPLE)!r}).mistakes({SET!r}) == ()
import sluicegate
from sluicegate.spark import write_dataframe
try:
    write_dataframe(None, None)
except sluicegate.errors.MissingExtra as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=150
    )
    assert done.stdout.startswith("sluicegate.spark.write_dataframe needs the package pyspark, ")


KAFKA = """\
name = "into kafka"
[sources.records]
format = "parquet"
path = "records"
[steps.out]
sql = "SELECT shop, body FROM records"
[write]
view = "out"
sink = "topic"
key = "shop"
delivery = "bucket"
version = 1
[sinks.topic]
kind = "kafka"
topic = "orders"
bootstrap = "${KAFKA}"
value = "boddy"
compresion = "lz4"
max_batch_bytes = 0
client = { linger_ms = 5 }
security_protocol = "SASL_SSL"
sasl_username = "me"
sasl_password = "env:KAFKA_PASSWORD"
ssl_cafil = "x"
ssl_password = "written-out-secret"
[sinks.nowhere]
kind = "kafka"
"""
FOUND_OF_KAFKA = """\
: write.key: cannot be kept in order: KafkaSink without key= chooses a partition for each write*
: write.delivery: 'bucket' cannot be kept: *cannot write in a transaction: *
: sinks.topic.value: there is no column 'boddy'; did you mean 'body'?
: sinks.topic.compresion: is unknown to kafka; did you mean 'compression'?
: sinks.topic.max_batch_bytes: max_batch_bytes=0: must be a whole number of at least 1
: sinks.topic.client: client={'linger_ms': ...}: is set by Sluicegate: the batcher decides *
: sinks.topic.ssl_cafil: is unknown to kafka; did you mean 'ssl_cafile'?
: sinks.nowhere.bootstrap: is missing
"""


def test_a_topic_is_checked_without_a_broker(tmp_path: Path) -> None:
    file = tmp_path / "kafka.toml"
    file.write_text(KAFKA)
    environment = {"KAFKA": "host:9092", "KAFKA_PASSWORD": "much-too-secret"}
    with pytest.raises(PipelineError) as caught:
        Pipeline.read(file).validate(environment=environment)
    found = str(caught.value).replace(str(file), "").splitlines()
    for line, expected in zip(sorted(found), sorted(FOUND_OF_KAFKA.splitlines()), strict=True):
        assert fnmatchcase(line.replace("[", "("), expected.replace("[", "(")), line
    assert "secret" not in str(caught.value)


def test_a_topic_is_explained_without_its_secrets(tmp_path: Path) -> None:
    file = tmp_path / "kafka.toml"
    file.write_text(
        KAFKA.split("[sinks.nowhere]")[0]
        .replace("delivery", "order_by = 'body'\n#")
        .replace("boddy", 'body"\nkey = "shop')
        .replace("version", "#")
        .replace("compresion", "compression")
        .replace('"yes"', "true")
        .replace("linger_ms", "metadata_max_age_ms")
        .replace("max_batch_bytes = 0", "max_batch_bytes = 1")
        .replace("cafil ", "cafile ")
    )
    environment = {"KAFKA": "host:9092", "KAFKA_PASSWORD": "much-too-secret"}
    pipeline = Pipeline.read(file)
    pipeline.validate(environment=environment)
    told = pipeline.explain()
    assert "secret" not in told
    assert "much-too-secret" not in repr(pipeline)
    for part in (
        "at least once: a repeated attempt writes again",
        "sink    topic: kafka(topic='orders', bootstrap='${KAFKA}', value='body', key='shop'",
        "sasl_password=env:KAFKA_PASSWORD",
        "ssl_cafile='x', ssl_password=...",
    ):
        assert part in told


def test_a_plan_is_drawn_from_the_sources_to_the_writes() -> None:
    """A step that joins is drawn once, below the first view that it reads."""
    made = declared(
        sources={"a": Source(format="parquet", path="a"), "b": Source(format="parquet", path="b")},
        steps={
            "joined": Step(sql="SELECT id FROM a JOIN b USING (id)", dedupe="id"),
            "few": Step(sql="SELECT id FROM joined WHERE id < 9"),
        },
        write=[Write(view="few", sink="memory"), Write(view="joined", sink="memory")],
    )
    drawn = made.explain().partition("\n")[2]
    again = "at least once: a repeated attempt writes again"
    assert drawn.startswith(
        "read a: parquet from a\n"
        "└─ select joined:\n"
        "   │    SELECT id FROM a JOIN b USING (id)\n"
        "   │    one row for each id\n"
        "   ├─ select few:\n"
        "   │  │    SELECT id FROM joined WHERE id < 9\n"
        f"   │  └─ write to memory, {again}\n"
        f"   └─ write to memory, {again}\n"
        "read b: parquet from b\n"
        "└─ select joined: see above\n"
        "  sink    memory: "
    )
