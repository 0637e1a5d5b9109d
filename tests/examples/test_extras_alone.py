"""Each extra is enough for what it is for: alone in an environment, from the index with the wheel; on each
version of Python if `SLUICEGATE_REQUIRE` names `pythons`, as `make test-dist` does.

The programs run the smallest thing of the extra: on a server if the tests have one, otherwise up to the
error of an address at which nothing listens.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.examples.conftest import execute
from tests.examples.example import ROOT
from tests.examples.reader import python, reader_in

from sluicegate.testing import EmbeddedUnavailable
from sluicegate.testing.servers.require import is_required, skip_or_fail

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # PySpark is half a gigabyte

RUNNING = f"3.{sys.version_info.minor}"
VERSIONS = ("3.11", "3.12", "3.13", "3.14") if is_required("pythons") else (RUNNING,)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: list[str] = [*PROJECT["optional-dependencies"]]

WRITE = """
import asyncio, sys
from sluicegate import Batcher
from sluicegate.{package} import {sink}

async def main():
    async with Batcher({sink}({arguments})) as batcher:
        print(await batcher.deliver({item}))

asyncio.run(main())
"""


def write(
    package: str, sink: str, arguments: str, item: str = "{'id': 1}", before: str = ""
) -> str:
    """A program that writes one item."""
    return before + WRITE.format(package=package, sink=sink, arguments=arguments, item=item)


def unavailable(package: str, sink: str, arguments: str) -> str:
    """A program that tries to reach a server at a closed port."""
    return f"""
import asyncio
from sluicegate import UnavailableError
from sluicegate.{package} import {sink}

async def main():
    try:
        async with {sink}({arguments}):
            pass
    except UnavailableError:
        print("Outcome.DELIVERED")

asyncio.run(main())
"""


HTTP = """
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass

server = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
"""
SQLITE = "import sqlite3; sqlite3.connect('a.db').execute('CREATE TABLE t (id INTEGER)')\n"
READ = """
import asyncio
from sluicegate import Consumer
from sluicegate.files import FileSource
{before}

async def main():
    async def handle(message):
        print("Outcome.DELIVERED", message.value)

    async with Consumer(FileSource({path!r})) as consumer:
        await consumer.run(handle)

asyncio.run(main())
"""
FILES = READ.format(
    before="import zstandard\nopen('a.jsonl.zst', 'wb').write(zstandard.compress(b'{}\\n'))",
    path="a.jsonl.zst",
)
PARQUET = """
import asyncio, pyarrow as pa
from pyarrow import parquet
from sluicegate import Consumer
from sluicegate.files import FileSource

parquet.write_table(pa.table({"id": [1]}), "a.parquet")

async def main():
    async def handle(message):
        print("Outcome.DELIVERED", message.value)

    async with Consumer(FileSource("a.parquet", format="parquet")) as consumer:
        await consumer.run(handle)

asyncio.run(main())
"""
PROBES = """
import asyncio, urllib.request
from sluicegate import Consumer
from sluicegate.consumer import MemoryLog, MemorySource, serve_probes

async def main():
    async with serve_probes(Consumer(MemorySource(MemoryLog())), port=0) as (host, port):
        url = f"http://{host}:{port}/live"
        answer = await asyncio.to_thread(urllib.request.urlopen, url)
        print("Outcome.DELIVERED", answer.status)

asyncio.run(main())
"""
CONSOLE = """
import asyncio
from sluicegate import Batcher
from sluicegate.console import Console
from sluicegate.sinks import MemorySink

async def main():
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async with Batcher(MemorySink()) as batcher, Console(batcher) as console:
        scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b"", "root_path": "",
            "headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "scheme": "http"}
        await console(scope, receive, send)
    assert sent[0]["status"] == 200, sent
    print("Outcome.DELIVERED")

asyncio.run(main())
"""
OBSERVED = """
import asyncio
from sluicegate import Batcher, stack
from sluicegate.sinks import MemorySink
from sluicegate.telemetry import {name}

async def main():
    async with Batcher(stack(MemorySink(), {made})) as batcher:
        print(await batcher.deliver(1))

asyncio.run(main())
"""
SPARK = """
import os, sys

os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
from sluicegate.files import FileSink
from sluicegate.spark import write_dataframe

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
report = write_dataframe(spark.range(3), FileSink("rows.jsonl"))
assert report.delivered == 3, report
spark.stop()
print("Outcome.DELIVERED")
"""
PIPELINE = """
from pathlib import Path
from sluicegate.cli import main

Path("p.toml").write_text('''
name = "p"
[sources.rows]
format = "csv"
path = "in.csv"
schema = "id INT"
[write]
view = "rows"
sink = "out"
[sinks.out]
kind = "file"
path = "out.jsonl"
''')
assert main(["pipeline", "validate", "p.toml"]) == 0
print("Outcome.DELIVERED")
"""
REGISTRY = """
from sluicegate.kafka import {made}, SchemaRegistry
{before}
{made}(SchemaRegistry("http://127.0.0.1:1"), {schema})
print("Outcome.DELIVERED")
"""
TESTING = """
import pytest
assert pytest.main(["-q", "-W", "error", "test_my_code.py", "test_my_handler.py"]) == 0
print("Outcome.DELIVERED")
"""
CONFLUENT = """
import asyncio, sys
from confluent_kafka import Producer
from sluicegate import Consumer
from sluicegate.kafka import ConfluentKafkaSource

producer = Producer({"bootstrap.servers": sys.argv[1]})
producer.produce(sys.argv[2], b"value")
producer.flush()

async def main():
    consumer = Consumer(ConfluentKafkaSource(sys.argv[2], bootstrap=sys.argv[1], group="g"))

    async def handle(message):
        print("Outcome.DELIVERED")
        consumer.stop()

    await consumer.run(handle)

asyncio.run(main())
"""
NATS = """
from sluicegate.testing import embedded_nats
with embedded_nats() as server:
    print("Outcome.DELIVERED", server.url)
"""
BLAKE3 = """
from sluicegate.postgres.queues.ring import ring_slot
assert ring_slot("key", "blake3") != ring_slot("key")
print("Outcome.DELIVERED")
"""
ALL = """
import importlib
for name in "batcher clickhouse console consumer errors files flow http kafka nats objects postgres redis retry sinks sql telemetry udp".split():
    module = importlib.import_module(f"sluicegate.{name}")
    for each in getattr(module, "__all__", ()):
        getattr(module, each)
print("Outcome.DELIVERED")
"""
SMALLEST: dict[str, str] = {
    "postgres": write("postgres", "PostgresSink", "sys.argv[1], table='alone', columns=('id',)"),
    "sql": write("sql", "SqlSink", "'sqlite:///a.db', table='t', columns=('id',)", before=SQLITE),
    "clickhouse": unavailable("clickhouse", "ClickHouseSink", "'http://127.0.0.1:1', table='t'"),
    "blake3": BLAKE3,
    "kafka": write("kafka", "KafkaSink", "sys.argv[2], bootstrap=sys.argv[1]"),
    "kafka-confluent": CONFLUENT,
    "avro": REGISTRY.format(made="Avro", before="", schema="'\"string\"'"),
    "protobuf": REGISTRY.format(made="Protobuf", before="from google.protobuf.timestamp_pb2 import Timestamp", schema="Timestamp"),
    "nats": write("nats", "NatsSink", "'alone', servers=sys.argv[1], delivery='core'"),
    "redis": unavailable("redis", "RedisSink", "'redis://127.0.0.1:1', stream='s'"),
    "http": write("http", "HttpSink", "f'http://127.0.0.1:{server.server_port}/'", before=HTTP),
    "files": FILES,
    "objects": write("objects", "ObjectSink", "Path.cwd().as_uri()", before="from pathlib import Path\n"),
    "parquet": PARQUET,
    "probes": PROBES,
    "console": CONSOLE,
    "prometheus": OBSERVED.format(name="Metrics", made="Metrics('alone')"),
    "otel": OBSERVED.format(name="Tracing", made="Tracing()"),
    "spark": SPARK,
    "pipeline": PIPELINE,
    "all": ALL,
    "testing": TESTING,
    "testing-kafka": "import aiokafka\n" + TESTING,
    "testing-nats": NATS,
}  # fmt: skip
NUMBERS = itertools.count()
SERVERS = {
    "postgres": "embedded_postgres",
    "kafka": "embedded_kafka",
    "kafka-confluent": "embedded_kafka",
    "nats": "embedded_nats",
}


@pytest.fixture(scope="module", params=VERSIONS)
def interpreter(request: pytest.FixtureRequest) -> Path:
    """Each version of Python."""
    try:
        return python(request.param)
    except EmbeddedUnavailable as error:
        skip_or_fail("pythons", str(error))


def address_for(extra: str, request: pytest.FixtureRequest) -> list[str]:
    """The address of the server of an extra, and a topic of it; or one with a table `alone`."""
    if extra not in SERVERS:
        return []
    server: Any = request.getfixturevalue(SERVERS[extra])
    if extra == "postgres":
        asyncio.run(execute(server.dsn, "CREATE TABLE IF NOT EXISTS alone (id int)"))
        return [server.dsn]
    if extra.startswith("kafka"):
        name = f"alone-{next(NUMBERS)}"
        server.create_topic(name, partitions=1)
        return [server.bootstrap, name]
    return [server.url]


def test_each_extra_has_a_program() -> None:
    assert [*SMALLEST] == EXTRAS


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_alone(
    extra: str, interpreter: Path, index: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    arguments = address_for(extra, request)
    reader = reader_in(tmp_path, index, interpreter)
    reader.install_by_uv(f"sluicegate[{extra}]")
    reader.copy("test_my_code.py", "test_my_handler.py")
    (reader.folder / "alone.py").write_text(SMALLEST[extra])
    imported = reader.run("-c", "import sluicegate; print(sluicegate.__file__)")
    assert Path(imported.strip()).is_relative_to(reader.environment)
    assert "Outcome.DELIVERED" in reader.run("alone.py", *arguments, seconds=280)
