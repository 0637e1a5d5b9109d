"""The options of `format("sluicegate")`, without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from sluicegate import ConfigError
from sluicegate.postgres.client.dsn import dsn_of
from sluicegate.postgres.client.names import table_name
from sluicegate.spark.description import description, load
from sluicegate.spark.options.sinks import prepared
from sluicegate.spark.options.table import OPTIONS, options_as_markdown

SECRET = "h1dden"
COLUMNS = ("id", "name", "version")
TO_POSTGRES = {"url": "postgresql://host/db", "dbtable": "shop.orders"}
TO_KAFKA = {"sink": "kafka", "bootstrapServers": "host:9092", "topic": "orders"}
LOGIN = {"securityProtocol": "SASL_SSL", "user": "u", "password": SECRET}
TO_NATS = {"sink": "nats", "url": "nats://host:4222", "subject": "orders.new"}
TO_ELASTICSEARCH = {"sink": "elasticsearch", "url": "http://host:9200", "index": "orders"}


def made(**options: str) -> str:
    """The repr of the stack, which shows whether the options have arrived."""
    recipe, _ = prepared({name.lower(): value for name, value in options.items()}, COLUMNS)
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
        ({**TO_POSTGRES, "maxRetries": "0", "timeoutMs": "250"}, ["Timeout(0.25)", "attempts=1"]),
        ({**TO_POSTGRES, "deadLetters": "./letters.jsonl"}, ["DeadLetter(FileSink("]),
        (
            {**TO_POSTGRES, "deadLetters": "shop.letters"},
            ["DeadLetter(", "table='shop.letters', on_conflict='ignore'"],
        ),
        ({"sink": "http", "url": "https://host/in"}, ["HttpSink(https://host/in)"]),
        (TO_ELASTICSEARCH, ["ElasticsearchSink("]),
        ({**TO_ELASTICSEARCH, "writeMode": "upsert", "mergeKeys": "id"}, ["upsert"]),
        ({"sink": "file", "path": "/tmp/rows.jsonl"}, ["FileSink("]),
        (
            {**TO_KAFKA, **LOGIN, "saslMechanism": "scram-sha-512", "compression": "lz4"},
            ["KafkaSink('orders', bootstrap='host:9092')", "attempts=4"],
        ),
        (
            {**TO_KAFKA, "deadLetters": "refused-orders"},
            ["DeadLetter(", "KafkaSink('refused-orders', bootstrap='host:9092')"],
        ),
        (
            {"sink": "kafka", "bootstrapServers": "host:9092", "topicColumn": "name"},
            ["KafkaSink(..., bootstrap="],
        ),
        (
            {**TO_NATS, "user": "app", "password": "s3cret", "messageIdColumn": "id"},
            ["NatsSink('orders.new', servers='nats://host:4222')", "attempts=4"],
        ),
        (
            {**TO_NATS, "deadLetters": "dead.orders"},
            ["DeadLetter(", "NatsSink('dead.orders', servers='nats://host:4222')"],
        ),
        (
            {"sink": "nats", "url": "nats://host:4222", "subjectColumn": "name"},
            ["NatsSink(..., servers="],
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
    assert description(prepared(TO_POSTGRES, COLUMNS)[0]) == description(
        prepared(TO_POSTGRES, COLUMNS)[0]
    )


def test_how_it_is_written() -> None:
    """An upsert keeps the order of a partition, unless versions decide."""
    assert prepared(TO_POSTGRES, COLUMNS)[1].cuts.window == 4
    assert prepared({**TO_POSTGRES, "writemode": "upsert"}, COLUMNS)[1].cuts.window == 1
    assert prepared(TO_KAFKA, COLUMNS)[1].cuts.window == 1
    assert (
        prepared({**TO_POSTGRES, "writemode": "upsert", "versioncolumn": "version"}, COLUMNS)[
            1
        ].cuts.window
        == 4
    )
    way = prepared(
        {
            **TO_POSTGRES,
            "batchsize": "7",
            "batchbytes": "70",
            "maxinflight": "2",
            "maxdeadletters": "5",
        },
        COLUMNS,
    )[1]
    assert (way.cuts.chunk_rows, way.cuts.chunk_bytes, way.cuts.window, way.max_dead_letters) == (
        7,
        70,
        2,
        5,
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"batchsizes": "1"},
            r"option='batchsizes': format\(\"sluicegate\"\) has no such option; batchsizes: did "
            r"you mean batchSize",
        ),
        ({"numpartitions": "4"}, r"numpartitions: use df.coalesce\(n\)"),
        ({"x": "1", "y": "2"}, r"option=\['x', 'y'\].*Its options: sink, url"),
        ({"batchsize": "many"}, "batchSize='many': must be a whole number of at least 1"),
        ({"batchsize": "-1"}, "batchSize='-1': must be a whole number of at least 1"),
        ({"maxretries": "1.5"}, "maxRetries='1.5': must be a whole number of at least 0"),
        ({"check": "no"}, "check='no': must be true or false"),
        (
            {"sink": "oracle"},
            "sink='oracle': must be one of postgres, http, elasticsearch, kafka, nats, file",
        ),
        ({"writemode": "merge"}, "writeMode='merge': must be one of append, upsert, ignore"),
        ({"mergekeys": "id"}, "mergeKeys='id': needs writeMode=upsert or ignore"),
        ({"mergekeys": "id,,name"}, "mergeKeys='id,,name': must be comma-separated names"),
        (
            {"mergekeys": "nope", "writemode": "upsert"},
            "mergeKeys='nope': must name columns of the DataFrame, which has id, name, version",
        ),
        (
            {"preparedstatements": "off"},
            "preparedStatements='off': must be one of auto, true, false",
        ),
        ({"versioncolumn": "version"}, "versionColumn='version': needs writeMode=upsert"),
        ({"dbtable": "a.b.c"}, "dbtable='a.b.c': must be table or schema.table"),
        (
            {"index": "orders"},
            "index='orders': has no meaning for sink='postgres', only for elasticsearch",
        ),
        ({"delivery": "bucket"}, "delivery='bucket': .*Use write_dataframe or foreach_batch"),
        ({"deadletters": " "}, "deadLetters=' ': must not be empty"),
        ({"dsn": "postgresql://host/db"}, "dsn='...': is another name for url"),
        ({"url": f"mysql://root:{SECRET}@host/db"}, "url='...': must begin with"),
        (
            {"url": f"jdbc:postgresql://host/db?password={SECRET}&reWriteBatchedInserts=true"},
            r"\(reWriteBatchedInserts\); leave them out",
        ),
        ({"url": f"postgresql://host/db?{SECRET}"}, "url='...': the part after"),
        (
            {"sink": "http", "url": "http://host", "password": SECRET},
            "dbtable='shop.orders': has no meaning for sink='http'",
        ),
    ],
)
def test_mistakes(options: dict[str, str], told: str) -> None:
    """The error names the option, the value and the rule, without a secret."""
    with pytest.raises(ConfigError, match=told) as refused:
        prepared({**TO_POSTGRES, **options}, COLUMNS)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "dbtable=None: must be given for sink='postgres'"),
        ({"dbtable": "t"}, "url=None: must be given"),
        ({"sink": "file"}, "path=None: must be given for sink='file'"),
        (
            {"sink": "http", "url": "http://host", "password": SECRET},
            "password='...': also needs user",
        ),
        (
            {"sink": "http", "url": "http://host", "deadletters": "letters"},
            "deadLetters='letters': must be raise, or a path",
        ),
        (
            {**TO_ELASTICSEARCH, "writemode": "upsert"},
            "must be the id column, if sink='elasticsearch' and writeMode=upsert",
        ),
        (
            {**TO_ELASTICSEARCH, "writemode": "ignore", "mergekeys": "id"},
            "writeMode='ignore': must be one of 'append', 'upsert'",
        ),
        ({"sink": "kafka", "topic": "t"}, "bootstrapServers=None: must be given for sink='kafka'"),
        (
            {"sink": "kafka", "bootstrapServers": "h:1"},
            "topic=None: must be given, or topicColumn, but not both",
        ),
        ({**TO_KAFKA, "topiccolumn": "name"}, "topic='orders': must be given, or topicColumn"),
        ({**TO_KAFKA, "keycolumn": "nope"}, "keyColumn='nope': must name columns of the DataFrame"),
        ({"sink": "nats", "subject": "a"}, "url=None: must be given for sink='nats'"),
        ({**TO_NATS, "subjectcolumn": "name"}, "subject='orders.new': must be given, or"),
        ({**TO_NATS, "user": "u"}, "user='...': also needs password"),
        ({**TO_NATS, "topic": "t"}, "topic='t': has no meaning for sink='nats'"),
        (
            {**TO_KAFKA, "writemode": "upsert"},
            "writeMode='upsert': has no meaning for sink='kafka'",
        ),
        (
            {**TO_KAFKA, "user": "u", "password": SECRET},
            "user='u': needs a securityProtocol with sasl",
        ),
        (
            {**TO_KAFKA, "securityprotocol": "SASL_SSL"},
            "securityProtocol='sasl_ssl': needs user and password",
        ),
        (
            {**TO_KAFKA, **LOGIN, "securityprotocol": "sasl_plaintext", "cafile": "ca.pem"},
            "caFile='ca.pem': needs a securityProtocol with ssl",
        ),
        (
            {**TO_KAFKA, "kafka.bootstrap.servers": "h:1"},
            "kafka.bootstrap.servers: use bootstrapServers",
        ),
    ],
)
def test_what_is_missing(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        prepared(options, COLUMNS)
    assert SECRET not in str(refused.value)


def test_a_recipe_shows_no_secret() -> None:
    """P-T18."""
    in_url = {**TO_POSTGRES, "password": SECRET, "url": f"postgresql://u:{SECRET}@host/db"}
    for options in (in_url, {**TO_KAFKA, **LOGIN, "deadLetters": "refused"}):
        check_hidden(options)


def check_hidden(options: dict[str, str]) -> None:
    recipe, _ = prepared({name.lower(): value for name, value in options.items()}, COLUMNS)
    assert SECRET not in repr(recipe)
    assert SECRET not in repr(load(description(recipe)))
    assert SECRET.encode() in pickle.dumps(recipe)  # it is transferred


@pytest.mark.parametrize(
    ("url", "dsn"),
    [
        ("postgresql://u:p@h:1/d?sslmode=require", "postgresql://u:p@h:1/d?sslmode=require"),
        ("jdbc:postgresql://h:1/d", "postgresql://h:1/d"),
        (
            "jdbc:postgresql://h/d?user=u&password=a%26b&ApplicationName=x&currentSchema=s",
            "postgresql://h/d?user=u&password=a%26b&application_name=x&search_path=s",
        ),
    ],
)
def test_urls_of_both_kinds(url: str, dsn: str) -> None:
    assert dsn_of("url", url) == dsn


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("orders", (None, "orders")),
        ("shop.orders", ("shop", "orders")),
        ('"My.Shop".orders', ("My.Shop", "orders")),
        ('shop."say ""hi"""', ("shop", 'say "hi"')),
        ("Shop.Orders", ("Shop", "Orders")),
    ],
)
def test_names_of_tables(text: str, named: Any) -> None:
    assert table_name("dbtable", text) == named


@pytest.mark.parametrize(
    "text", ["", ".", "a.", ".a", "a.b.c", '"a', 'a"b', '"a"b', '"".a', "a..b"]
)
def test_what_is_no_name_of_a_table(text: str) -> None:
    with pytest.raises(ConfigError, match=r"must be table or schema\.table"):
        table_name("dbtable", text)


def test_the_table_of_options_is_in_order() -> None:
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)
    assert all(option.meaning and not option.meaning.endswith(".") for option in OPTIONS)


def test_the_page_shows_the_table_as_it_is() -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "write-from-spark.md"
    assert options_as_markdown() in page.read_text()
