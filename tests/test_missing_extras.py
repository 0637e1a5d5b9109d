"""Nothing public needs an optional package until it is used, and then the error names the package,
the extra and the command.

The programs run in an interpreter that cannot find any optional package, as if only the core were
installed.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.surface import PUBLIC

import sluicegate

PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]

ABSENT = """\
import importlib.machinery
import sys

CORE = {"sluicegate", "pyspark_sluicegate", "tenacity", "typing_extensions", *sys.stdlib_module_names}
BUILT = "_sysconfigdata_"  # a part of the standard library, named after the machine

class Core:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] not in CORE and not name.startswith(BUILT):
            return None
        return importlib.machinery.PathFinder.find_spec(name, path, target)

sys.meta_path = [
    Core if each is importlib.machinery.PathFinder else each
    for each in sys.meta_path
    if "editable" not in getattr(each, "__module__", "") + getattr(each, "__name__", "")
]
"""
"""Makes an interpreter find the core alone; modules that it has loaded before stay."""

DSN = '"postgresql://db/sales"'
CALLS = {
    "sluicegate.telemetry.Metrics": ('"m"', "prometheus-client", "prometheus"),
    "sluicegate.telemetry.Tracing": ("", "opentelemetry-api", "otel"),
    "sluicegate.consumer.serve_probes": ("consumer, port=0", "uvicorn", "probes"),
    "sluicegate.kafka.Avro": ('"r"', "fastavro", "avro"),
    "sluicegate.kafka.Protobuf": ('"r", object', "protobuf", "protobuf"),
    "sluicegate.kafka.SchemaRegistry": ('"http://h"', "httpx", "http"),
    "sluicegate.kafka.KafkaState": ('topic="t", bootstrap="h:1"', "aiokafka", "kafka"),
    "sluicegate.postgres.PostgresState": (f'{DSN}, table="t"', "asyncpg", "postgres"),
    "sluicegate.postgres.QueueAdmin": (DSN, "asyncpg", "postgres"),
    "sluicegate.postgres.QueueMonitor": (DSN, "asyncpg", "postgres"),
    "sluicegate.clickhouse.ClickHouseSink": ('"http://h", table="t"', "pyarrow", "clickhouse"),
    "sluicegate.http.ElasticsearchSink": ('"http://h", index="i"', "httpx", "http"),
    "sluicegate.http.HttpSink": ('"http://h"', "httpx", "http"),
    "sluicegate.kafka.KafkaSink": ('"t", bootstrap="h:1"', "aiokafka", "kafka"),
    "sluicegate.nats.NatsSink": ('"t", servers="h:1"', "nats-py", "nats"),
    "sluicegate.objects.ObjectSink": ('"s3://bucket"', "obstore", "objects"),
    "sluicegate.objects.ParquetSink": ('"s3://bucket", schema=None', "obstore", "objects"),
    "sluicegate.console.Console": ("", "starlette", "console"),
    "sluicegate.postgres.PostgresEffects": (DSN, "asyncpg", "postgres"),
    "sluicegate.postgres.PostgresQueueSink": (f'{DSN}, queue="q"', "asyncpg", "postgres"),
    "sluicegate.postgres.PostgresSink": (f'{DSN}, table="t", columns=("a",)', "asyncpg", "postgres"),
    "sluicegate.postgres.PostgresStreamSink": (f'{DSN}, stream="s", type="t"', "asyncpg", "postgres"),
    "sluicegate.redis.RedisSink": ('"redis://h"', "redis", "redis"),
    "sluicegate.sql.SqlSink": ('"sqlite:///a", table="t", columns=("a",)', "SQLAlchemy", "sql"),
    "sluicegate.files.FileSource": ('"a", format="parquet"', "pyarrow", "parquet"),
    "sluicegate.nats.JetStreamSource": (
        '"s", servers="h:1", durable="d"', "nats-py", "nats",
    ),
    "sluicegate.kafka.KafkaSource": ('"t", bootstrap="h:1", group="g"', "aiokafka", "kafka"),
    "sluicegate.kafka.ConfluentKafkaSource": (
        '"t", bootstrap="h:1", group="g"', "confluent-kafka", "kafka-confluent",
    ),
    "sluicegate.postgres.PostgresQueueSource": (
        f'{DSN}, queue="q"', "asyncpg", "postgres",
    ),
    "sluicegate.postgres.PostgresStreamSource": (
        f'{DSN}, subscription="s"', "asyncpg", "postgres",
    ),
    "sluicegate.postgres.PostgresAdvisoryLocks": (DSN, "asyncpg", "postgres"),
    "sluicegate.postgres.PostgresSubscriptions": (DSN, "asyncpg", "postgres"),
    "sluicegate.spark.PrometheusQueryListener": ("", "pyspark", "spark"),
    "sluicegate.spark.Registration": ('"f", None', "pyspark", "spark"),
    "sluicegate.spark.connector_jars": ('"kafka"', "pyspark", "spark"),
    "sluicegate.spark.debezium_changes": ('None, "id INT"', "pyspark", "spark"),
    "sluicegate.spark.foreach_batch": ("None", "pyspark", "spark"),
    "sluicegate.spark.keyed": ("None", "pyspark", "spark"),
    "sluicegate.spark.register": ('None, "f", None', "pyspark", "spark"),
    "sluicegate.spark.register_avro": ('None, "http://h"', "pyspark", "spark"),
    "sluicegate.spark.write_dataframe": ("None, None", "pyspark", "spark"),
    "sluicegate.postgres.ParkAdmin": (DSN, "asyncpg", "postgres"),
    "sluicegate.postgres.PostgresParkStore": (DSN, "asyncpg", "postgres"),
    "sluicegate.postgres.StreamMonitor": (DSN, "asyncpg", "postgres"),
    "sluicegate.postgres.SubscriptionAdmin": (DSN, "asyncpg", "postgres"),
    "sluicegate.telemetry.ConsumerTracing": ("", "opentelemetry-api", "otel"),
    "sluicegate.telemetry.OpenTelemetryConsumerObserver": ("", "opentelemetry-api", "otel"),
    "sluicegate.telemetry.OpenTelemetryObserver": ("", "opentelemetry-api", "otel"),
    "sluicegate.postgres.OpenTelemetryQueueObserver": ("", "opentelemetry-api", "otel"),
    "sluicegate.postgres.OpenTelemetryStreamObserver": ("", "opentelemetry-api", "otel"),
    "sluicegate.telemetry.PrometheusConsumerObserver": ("", "prometheus-client", "prometheus"),
    "sluicegate.telemetry.PrometheusObserver": ("", "prometheus-client", "prometheus"),
    "sluicegate.postgres.PrometheusQueueObserver": ("", "prometheus-client", "prometheus"),
    "sluicegate.postgres.PrometheusStreamObserver": ("", "prometheus-client", "prometheus"),
}  # fmt: skip
"""Each public name that needs an optional package: its arguments, the package, and the extra."""

PRIVATE_NAMES = {
    "consumer/operating/probes.py": "uvicorn",  # it overrides parts of the server
    "kafka/client/internals.py": "aiokafka",
    "nats/client.py": "nats-py",
    "postgres/client/answers.py": "asyncpg",
    "postgres/client/connections.py": "asyncpg",
    "postgres/client/statements.py": "asyncpg",
}
"""The modules that use private names of a client."""
TECHNOLOGIES = ("clickhouse", "console", "files", "http", "kafka", "nats", "objects", "postgres", "redis", "spark", "sql", "udp")  # fmt: skip

FOR_TESTS = {"sluicegate.testing.conformance"}
"""Packages that only pytest loads, which they need."""


def public_names() -> dict[str, object]:
    """The exported classes and functions, by their home and name."""
    found: dict[str, object] = {}
    for package in PUBLIC:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                found[f"{thing.__module__}.{thing.__name__}"] = thing
    return found


def with_the_core_alone(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"{ABSENT}\n{program}"],
        capture_output=True, text=True, check=False, timeout=120,
        env={"PYTHONPATH": str(Path(__file__).parents[1] / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def errors() -> dict[str, list[str]]:
    """The error of each call of the table, by name: its types, its text and its module. Before, all
    public names are imported.
    """
    calls = {name: arguments for name, (arguments, *_) in CALLS.items()}
    packages = [each for each in PUBLIC if each not in FOR_TESTS]
    program = f"""
import asyncio, importlib, json

for package in {packages!r}:
    module = importlib.import_module(package)
    exec(f"from {{package}} import *", {{}})
    assert all(hasattr(module, name) for name in getattr(module, "__all__", ())), package

from sluicegate import Consumer
from sluicegate.consumer import MemoryLog, MemorySource

names = {{"consumer": Consumer(MemorySource(MemoryLog()))}}

async def error_of(name, arguments):
    module, _, name = name.rpartition(".")
    try:
        made = eval(f"thing({{arguments}})", names | {{"thing": getattr(importlib.import_module(module), name)}})
        if hasattr(made, "__aenter__") and name == "serve_probes":
            await made.__aenter__()
    except Exception as error:
        kinds = [each.__name__ for each in type(error).__mro__]
        return [" ".join(kinds), str(error), getattr(error, "name", None)]
    return ["", "no error", None]

print(json.dumps({{n: asyncio.run(error_of(n, a)) for n, a in {calls!r}.items()}}))
"""
    return dict(json.loads(with_the_core_alone(program)))


def test_every_public_name_can_be_imported_with_the_core_alone(
    errors: dict[str, list[str]],
) -> None:
    assert set(errors) == set(CALLS), "the program has ended"


def test_the_table_has_every_name_whose_description_mentions_the_error() -> None:
    documented = {
        name
        for name, thing in public_names().items()
        if name != "sluicegate.errors.MissingExtra"
        and "MissingExtra" in (inspect.getdoc(thing) or "")
    }
    assert documented - set(CALLS) == set()
    assert set(CALLS) - documented == {name for name in CALLS if ".spark." in name} - documented


@pytest.mark.parametrize("name", CALLS)
def test_an_absent_package_is_named_with_its_extra_and_the_command(
    name: str, errors: dict[str, list[str]]
) -> None:
    _, package, extra = CALLS[name]
    kinds, text, module = errors[name]
    assert kinds.startswith("MissingExtra"), (kinds, text)
    assert "ImportError" in kinds
    assert module is not None
    assert f"needs the package {package}, which is not installed; the extra {extra!r}" in text
    assert text.endswith(f'pip install "sluicegate[{extra}]"')


def test_a_client_whose_private_names_are_used_has_an_upper_bound() -> None:
    """Its next release may not have them. `sql/engine.py` asks drivers that no extra installs."""
    root = Path(sluicegate.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if re.search(r'SLF001|getattr\(\w+, "_(sock|transport)', path.read_text("utf-8"))
        and path.relative_to(root).parts[0] in {*TECHNOLOGIES}
    }
    ignored = PYPROJECT["tool"]["ruff"]["lint"]["per-file-ignores"]
    found |= {
        name.removeprefix("src/sluicegate/")
        for name, rules in ignored.items()
        if "SLF001" in rules and name.split("/")[2:3] in [[each] for each in TECHNOLOGIES]
    }
    own = {"postgres/server.py", "kafka/confluent/errors.py", "sql/engine.py"}
    assert found - own == {*PRIVATE_NAMES} - {"consumer/operating/probes.py"}
    for requirements in EXTRAS.values():
        for each in requirements:
            name = re.split(r"[\[<>=]", each)[0]
            assert name not in PRIVATE_NAMES.values() or "<" in each, each
