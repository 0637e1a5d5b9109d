"""The options of `format("sluicegate")`, without Spark. White box: the reading of options."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from pyspark_sluicegate import DefaultSource
from sluicegate import ConfigError
from sluicegate.spark.description import description, load
from sluicegate.spark.options import OPTIONS, _Reading, options_as_markdown, prepare

SECRET = "h1dden"
SCHEMA = StructType().add("id", "long").add("name", "string").add("version", "integer")
TO_POSTGRES = {"url": "postgresql://host/db", "dbtable": "shop.orders"}
TO_KAFKA = {"sink": "kafka", "url": "host:9092", "topic": "orders"}
LOGIN = {"security_protocol": "SASL_SSL", "sasl_username": "u", "sasl_password": SECRET}
TO_NATS = {"sink": "nats", "url": "nats://host:4222", "subject": "orders.new"}
TO_ELASTICSEARCH = {"sink": "elasticsearch", "url": "http://host:9200", "index": "orders"}


def lowered(options: dict[str, str]) -> dict[str, str]:
    """The options as Spark passes them."""
    return {name.lower(): value for name, value in options.items()}


def made(**options: str) -> str:
    """The repr of the stack, which shows whether the options have arrived."""
    recipe, _ = prepare(lowered(options), SCHEMA)
    return repr(load(description(recipe)))


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (
            TO_POSTGRES,
            [
                "PostgresSink(host/db, table='shop.orders', on_conflict='error')",
                "Timeout(60.0)",
                "attempts=4",
            ],
        ),
        ({**TO_POSTGRES, "writeMode": "Upsert", "mergeKeys": "id, name"}, ["on_conflict='update'"]),
        (
            {**TO_POSTGRES, "onConflict": "update", "conflict_columns": '["id"]', "poolSize": "3"},
            ["on_conflict='update'"],
        ),
        ({**TO_POSTGRES, "maxRetries": "0", "timeoutMs": "250"}, ["Timeout(0.25)", "attempts=1"]),
        ({**TO_POSTGRES, "deadLetters": "./letters.jsonl"}, ["DeadLetter(FileSink("]),
        (
            {**TO_POSTGRES, "deadLetters": "shop.letters"},
            ["DeadLetter(", "table='shop.letters', on_conflict='ignore'"],
        ),
        ({"sink": "http", "url": "https://host/in"}, ["HttpSink(https://host/in)"]),
        (TO_ELASTICSEARCH, ["ElasticsearchSink("]),
        ({**TO_ELASTICSEARCH, "operation": "upsert", "id": "id"}, ["upsert"]),
        ({"sink": "file", "path": "/tmp/rows.jsonl"}, ["FileSink("]),
        ({"sink": "clickhouse", "url": "http://host:8123", "table": "t"}, ["ClickHouseSink("]),
        ({"sink": "python", "factory": "sluicegate.sinks:MemorySink"}, ["MemorySink("]),
        (
            {**TO_KAFKA, **LOGIN, "sasl_mechanism": "SCRAM-SHA-512", "compression": "lz4"},
            ["KafkaSink('orders', bootstrap='host:9092')", "attempts=4"],
        ),
        (
            {"sink": "kafka", "bootstrap": "host:9092", "topicField": "name"},
            ["KafkaSink(..., bootstrap="],
        ),
        (
            {**TO_NATS, "user": "app", "password": "s3cret", "messageId": "id"},
            ["NatsSink('orders.new', servers='nats://host:4222')", "attempts=4"],
        ),
    ],
)
def test_options_make_a_stack(options: dict[str, str], shown: list[str]) -> None:
    found = made(**options)
    assert [part for part in shown if part not in found] == [], found


def test_the_same_options_make_the_same_description() -> None:
    """A worker process uses it to find an already open sink; any randomness would open one for
    every write.
    """
    assert description(prepare(TO_POSTGRES, SCHEMA)[0]) == description(
        prepare(TO_POSTGRES, SCHEMA)[0]
    )


def test_how_it_is_written() -> None:
    """An upsert keeps the order of a partition, unless versions decide."""

    def window(**options: str) -> int:
        return prepare(lowered({**TO_POSTGRES, **options}), SCHEMA)[1].cuts.window

    assert window() == 4
    assert window(writeMode="upsert") == 1
    assert window(writeMode="upsert", versionColumn="version") == 4
    assert prepare(TO_KAFKA, SCHEMA)[1].cuts.window == 1
    given = {"batchSize": "7", "batchBytes": "70", "maxInFlight": "2", "maxDeadLetters": "5"}
    way = prepare(lowered({**TO_POSTGRES, **given}), SCHEMA)[1]
    assert (way.cuts.chunk_rows, way.cuts.chunk_bytes, way.cuts.window, way.max_dead_letters) == (
        7,
        70,
        2,
        5,
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batchSizes": "1"}, "batchsizes: is unknown to postgres; did you mean 'batchSize'"),
        ({"batchSize": "many"}, "batchSize='many': must be a whole number of at least 1"),
        ({"maxRetries": "1.5"}, "maxRetries=1.5: must be a whole number of at least 0"),
        ({"check": "no"}, "check='no': must be true or false"),
        ({"sink": "oracle"}, "sink: 'oracle' is not a sink; known: clickhouse, elasticsearch"),
        ({"writeMode": "merge"}, "writeMode: 'merge' must be one of append, upsert, ignore"),
        ({"mergeKeys": "id"}, "mergeKeys: needs writeMode=upsert or ignore"),
        ({"mergeKeys": "id,,name"}, "mergeKeys='id,,name': must be comma-separated names"),
        (
            {"mergeKeys": "nope", "writeMode": "upsert"},
            r"mergeKeys: conflict_columns=\['nope'\]: must be among columns",
        ),
        ({"preparedStatements": "off"}, "prepared_statements='off': must be"),
        ({"versionColumn": "version"}, "version_column='version': needs on_conflict"),
        ({"dbtable": "a.b.c"}, "dbtable: 'a.b.c' must be table or schema.table"),
        ({"index": "orders"}, "index: is unknown to postgres"),
        ({"delivery": "bucket"}, "delivery: is unknown to postgres"),
        ({"deadLetters": " "}, "deadLetters=' ': must not be empty"),
        ({"dsn": "postgresql://host/db"}, "url: is another name for dsn"),
        ({"url": f"mysql://root:{SECRET}@host/db"}, "url: dsn='mysql://...': must be"),
        (
            {"url": f"jdbc:postgresql://host/db?password={SECRET}&reWriteBatchedInserts=true"},
            r"\(reWriteBatchedInserts\); leave them out",
        ),
        ({"url": f"postgresql://host/db?{SECRET}"}, "url: dsn='...': the part after"),
        (
            {"sink": "http", "url": "http://host", "password": SECRET},
            "dbtable: is unknown to http; known.*user: must be given together with password",
        ),
    ],
)
def test_mistakes(options: dict[str, str], told: str) -> None:
    """The error names the option, the value and the rule, without a secret."""
    with pytest.raises(ConfigError, match=told) as refused:
        prepare(lowered({**TO_POSTGRES, **options}), SCHEMA)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "table: is missing; url: is missing"),
        ({"sink": "file"}, "path: is missing"),
        (
            {"sink": "http", "url": "http://host", "deadLetters": "letters"},
            "deadLetters: 'letters' must be raise, or a path",
        ),
        ({"user": "u", "dbtable": "t"}, "user: needs url"),
        ({**TO_ELASTICSEARCH, "writeMode": "upsert"}, "writemode: is unknown to elasticsearch"),
        ({"sink": "kafka", "topic": "t"}, "url: is missing"),
        ({"sink": "kafka", "url": "h:1"}, "topic=None: must be given, or topic_field"),
        ({**TO_KAFKA, "topicField": "name"}, "cannot be combined with topic_field"),
        ({**TO_KAFKA, "key": "nope"}, "key: there is no column 'nope'"),
        ({**TO_KAFKA, "writeMode": "upsert"}, "writemode: is unknown to kafka"),
        ({**TO_KAFKA, "user": "u", "password": SECRET}, "user: is unknown to kafka"),
    ],
)
def test_what_is_missing(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        prepare(lowered(options), SCHEMA)
    assert SECRET not in str(refused.value)


def test_overwrite_is_never_taken_for_append() -> None:
    """P-T14: refused when Spark plans the write, before anything is opened."""
    source = DefaultSource(lowered(TO_POSTGRES))
    told = r"mode='overwrite': format\('sluicegate'\) only adds rows; write with .mode\('append'\)"
    with pytest.raises(ConfigError, match=told):
        source.writer(StructType().add("id", "long"), overwrite=True)


def test_all_mistakes_are_found_at_once() -> None:
    given = {"batchSize": "0", "dbtable": "t", "poolSize": "0", "mergeKeys": "id"}
    with pytest.raises(ConfigError) as refused:
        prepare(lowered(given), SCHEMA)
    for option in ("batchSize", "mergeKeys"):
        assert option in str(refused.value)


def test_a_recipe_shows_no_secret() -> None:
    """P-T18."""
    in_url = {**TO_POSTGRES, "password": SECRET, "url": f"postgresql://u:{SECRET}@host/db"}
    for options in (in_url, {**TO_KAFKA, **LOGIN}):
        check_hidden(options)


def check_hidden(options: dict[str, str]) -> None:
    recipe, _ = prepare(lowered(options), SCHEMA)
    assert SECRET not in repr(recipe)
    assert SECRET not in repr(load(description(recipe)))
    assert SECRET.encode() in pickle.dumps(recipe)  # it is transferred


def arguments(**options: str) -> dict[str, Any]:
    return dict(_Reading(lowered(options)).sinks["sink"].arguments)


@pytest.mark.parametrize(
    ("options", "dsn"),
    [
        (
            {"url": "postgresql://u:p@h:1/d?sslmode=require"},
            "postgresql://u:p@h:1/d?sslmode=require",
        ),
        ({"url": "jdbc:postgresql://h:1/d"}, "postgresql://h:1/d"),
        (
            {
                "url": "jdbc:postgresql://h/d?user=u&password=a%26b&ApplicationName=x&currentSchema=s"
            },
            "postgresql://h/d?user=u&password=a%26b&application_name=x&search_path=s",
        ),
        (
            {"url": "jdbc:postgresql://h:1,i/d", "user": "a b", "password": "x/@:"},
            "postgresql://a%20b:x%2F%40%3A@h:1,i/d",
        ),
        ({"url": "postgresql://u:p%2F@h/d", "user": "v"}, "postgresql://v:p%2F@h/d"),
    ],
)
def test_urls_of_both_kinds(options: dict[str, str], dsn: str) -> None:
    assert arguments(**options)["dsn"] == dsn


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("orders", {"table": "orders"}),
        ("shop.orders", {"schema": "shop", "table": "orders"}),
        ('"My.Shop".orders', {"schema": "My.Shop", "table": "orders"}),
        ('shop."say ""hi"""', {"schema": "shop", "table": 'say "hi"'}),
        ("Shop.Orders", {"schema": "Shop", "table": "Orders"}),
    ],
)
def test_names_of_tables(text: str, named: dict[str, str]) -> None:
    found = arguments(dbtable=text)
    assert {name: found[name] for name in ("schema", "table") if name in found} == named


@pytest.mark.parametrize("text", [".", "a.", ".a", "a.b.c", '"a', 'a"b', '"a"b', '"".a', "a..b"])
def test_what_is_no_name_of_a_table(text: str) -> None:
    with pytest.raises(ConfigError, match=r"must be table or schema\.table"):
        prepare({"url": "postgresql://h/d", "dbtable": text}, SCHEMA)


def test_the_table_of_options_is_in_order() -> None:
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)
    assert all(option.meaning and not option.meaning.endswith(".") for option in OPTIONS)


def test_the_page_shows_the_table_as_it_is() -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "write-from-spark.md"
    assert options_as_markdown() in page.read_text()
