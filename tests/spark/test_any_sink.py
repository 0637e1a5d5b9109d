"""Sinks that pass the conformance suite work from Spark: rows travel as columns, and outcomes are
returned and counted.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

pytest.importorskip("pyspark")

from tests.clickhouse.clickhouse_help import Words
from tests.clickhouse.servers import EngineServer, running
from tests.nats.sink.nats_help import new_stream, read
from tests.redis_server import redis_server
from tests.udp.udp_help import Receiver

from sluicegate import Batch, DeadLetter, FanOut, PermanentError, Retry, Timeout, WriteResult, stack
from sluicegate.files import FileSink
from sluicegate.http import ElasticsearchSink, HttpResponse, HttpSink
from sluicegate.nats import NatsSink
from sluicegate.objects import ParquetSink
from sluicegate.redis import RedisSink
from sluicegate.sinks import MemorySink
from sluicegate.spark import write_dataframe
from sluicegate.sql import SqlSink
from sluicegate.testing.servers.require import there_or_skip
from sluicegate.udp import UdpSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = 200
BAD = 150
"""The number of the refused row, for sinks that refuse one."""


class Kept(BaseHTTPRequestHandler):
    """Stores the rows of each request; refuses the bad one by its status."""

    numbers: list[int]

    def do_POST(self) -> None:
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.numbers.extend(row["n"] for row in rows if row["n"] != BAD)
        answer = json.dumps([400 if row["n"] == BAD else 200 for row in rows]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name there
        pass


def parse(response: HttpResponse, batch: Batch[Any]) -> WriteResult:
    return WriteResult.from_outcomes(
        batch,
        [
            None if status == 200 else PermanentError(str(status))
            for status in json.loads(response.body)
        ],
    )


class Case:
    """A sink, its stored rows (`None` if they cannot be read), and whether it refuses the bad
    row.
    """

    def __init__(
        self, sink: Any, stored: Callable[[], list[int]] | None, *, refuses: bool = False
    ) -> None:
        self.sink = sink
        self.stored = stored
        self.refuses = refuses


def memory(_: pytest.FixtureRequest, __: Path) -> Case:
    return Case(MemorySink(), None)


def function(_: pytest.FixtureRequest, folder: Path) -> Case:
    path = str(folder)

    def write(batch: Batch[Any]) -> WriteResult:
        good = [row["n"] for row in batch if row["n"] != BAD]
        (Path(path) / f"{min(good)}.json").write_text(json.dumps(good), encoding="utf-8")
        return WriteResult.failed(
            batch, {i: PermanentError("bad") for i, row in enumerate(batch) if row["n"] == BAD}
        )

    return Case(
        write,
        lambda: [n for file in folder.glob("*.json") for n in json.loads(file.read_text())],
        refuses=True,
    )


def file(_: pytest.FixtureRequest, folder: Path) -> Case:
    def stored() -> list[int]:
        return [
            json.loads(line)["n"]
            for path in folder.glob("rows*")
            for line in path.read_text().splitlines()
        ]

    return Case(FileSink(folder / "rows.jsonl", per_process=True), stored)


def http(request: pytest.FixtureRequest, _: Path) -> Case:
    class Here(Kept):
        numbers: list[int] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Here)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def end() -> None:
        server.shutdown()
        thread.join()
        server.server_close()

    request.addfinalizer(end)
    sink = HttpSink(f"http://127.0.0.1:{server.server_port}/", body="json", parse=parse)
    return Case(sink, lambda: Here.numbers, refuses=True)


def elasticsearch(request: pytest.FixtureRequest, _: Path) -> Case:
    url = request.getfixturevalue("embedded_opensearch").url
    body = {
        "settings": {"number_of_replicas": 0},
        "mappings": {"properties": {"word": {"type": "long"}}},
    }
    httpx.put(f"{url}/from-spark", json=body, timeout=30)

    def stored() -> list[int]:
        httpx.post(f"{url}/from-spark/_refresh", timeout=30)
        hits = httpx.post(f"{url}/from-spark/_search", json={"size": 1000}, timeout=30).json()[
            "hits"
        ]["hits"]
        return [hit["_source"]["n"] for hit in hits]

    return Case(ElasticsearchSink(url, index="from-spark", id="n"), stored, refuses=True)


def nats(request: pytest.FixtureRequest, _: Path) -> Case:
    """The longest message exceeds the limit of its stream."""
    server = request.getfixturevalue("embedded_nats")
    stream = asyncio.run(new_stream(server, max_msg_size=100))

    def stored() -> list[int]:
        return [each.item["n"] for each in asyncio.run(read(server, stream))]

    sink = NatsSink(f"{stream}.rows", servers=server.url, message_id="n", headers=_padded)
    return Case(sink, stored, refuses=True)


def sql(request: pytest.FixtureRequest, folder: Path) -> Case:
    """SQLite, whose tasks wait for each other; a check constraint refuses the bad row."""
    path = folder / "rows.db"
    with sqlite3.connect(path) as con:
        con.execute("CREATE TABLE rows (n INT PRIMARY KEY, word TEXT CHECK (word <> 'no number'))")

    def stored() -> list[int]:
        with sqlite3.connect(path) as con:
            return [n for (n,) in con.execute("SELECT n FROM rows")]

    sink = SqlSink(f"sqlite:///{path}", table="rows", columns=("n", "word"))
    return Case(sink, stored, refuses=True)


def parquet(request: pytest.FixtureRequest, folder: Path) -> Case:
    """A folder to which every worker writes files, whose columns are those of the rows."""

    def stored() -> list[int]:
        from pyarrow import dataset

        found: list[int] = dataset.dataset(folder, format="parquet").to_table()["n"].to_pylist()
        return found

    sink = ParquetSink(folder.as_uri(), schema=None)
    return Case(sink, stored, refuses=False)


def redis(request: pytest.FixtureRequest, _: Path) -> Case:
    """Redis, which refuses an entry with the id 0."""
    redis_py = pytest.importorskip("redis")
    server = redis_server()
    url = (
        request.getfixturevalue("stack_of_servers")
        .enter_context(there_or_skip("redis", server))
        .url
    )

    def stored() -> list[int]:
        with redis_py.Redis.from_url(url) as client:
            return [int(fields[b"n"]) for _, fields in client.xrange("rows")]

    return Case(RedisSink(url, stream="rows", id=_zero), stored, refuses=True)


def udp(request: pytest.FixtureRequest, _: Path) -> Case:
    """Datagrams that the kernel has accepted; a name that violates the protocol is refused."""
    receiver = request.getfixturevalue("stack_of_servers").enter_context(Receiver())

    def stored() -> list[int]:
        return [int(each.partition(":")[2].partition("|")[0]) for each in receiver.lines()]

    return Case(UdpSink(receiver.host, receiver.port, encode=_metric), stored, refuses=True)


def _metric(row: dict[str, Any]) -> str:
    return f"{row['word']}:{row['n']}|c" + ("\n" if row["n"] == BAD else "")


def _zero(row: dict[str, Any]) -> str | None:
    return "0-0" if row["n"] == BAD else None


def clickhouse(request: pytest.FixtureRequest, _: Path) -> Case:
    """The embedded engine; a constraint refuses the bad row."""
    there = there_or_skip("clickhouse", running(EngineServer))
    words = Words(there.__enter__())
    request.addfinalizer(lambda: there.__exit__(None, None, None))
    words.make("n Int64, word String, CONSTRAINT good CHECK word <> 'no number'", order="n")

    def stored() -> list[int]:
        return [int(n) for (n,) in words.rows("n", "n")]

    return Case(words.sink(), stored, refuses=True)


def _padded(row: dict[str, Any]) -> dict[str, str]:
    return {"padding": "x" * 100} if row["n"] == BAD else {}


@pytest.fixture
def stack_of_servers() -> Iterator[ExitStack]:
    """The servers of one test."""
    with ExitStack() as opened:
        yield opened


@pytest.fixture(
    params=[
        memory,
        function,
        file,
        parquet,
        udp,
        *(
            pytest.param(case, marks=pytest.mark.long)
            for case in (http, elasticsearch, nats, sql, redis, clickhouse)
        ),
    ],
    ids=lambda case: case.__name__,
)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    made: Case = request.param(request, tmp_path)
    return made


def test_any_sink_works_from_spark(spark: Any, case: Case) -> None:
    """P-T12: every row is stored or returned with its reason, through a stack, in several chunks of
    two tasks.
    """
    df = spark.range(0, ROWS, numPartitions=2).selectExpr(
        "id AS n", f"CASE WHEN id = {BAD} THEN 'no number' ELSE '1' END AS word"
    )
    report = write_dataframe(
        df, stack(case.sink, Timeout(30.0), Retry(attempts=2)), chunk_rows=30, dead_letters="return"
    )
    dead = [row.row["n"] for row in report.dead_rows]
    assert dead == ([BAD] if case.refuses else [])
    assert (report.rows, report.delivered, report.failed) == (ROWS, ROWS - len(dead), len(dead))
    if case.stored is not None:
        assert sorted(case.stored()) == [n for n in range(ROWS) if n not in dead]


def test_maps_are_objects(spark: Any, tmp_path: Path) -> None:
    """In JSON, and as the tags of a metric."""
    df = spark.sql("SELECT 'a' AS name, 1 AS value, 'c' AS type, map('x', '1') AS tags")
    with Receiver() as receiver:
        sink = FanOut(FileSink(tmp_path / "rows"), UdpSink(receiver.host, receiver.port))
        assert write_dataframe(df, sink).delivered == 1
        assert receiver.lines() == ["a:1|c|#x:1"]
    stored = json.loads((tmp_path / "rows").read_text())
    assert stored == {"name": "a", "value": 1, "type": "c", "tags": {"x": "1"}}


def test_dead_letters_of_any_sink_are_kept_where_they_are_sent(
    spark: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    case = http(request, tmp_path)
    letters = FileSink(
        tmp_path / "letters.jsonl", per_process=True, encode=lambda record: json.dumps(record.item)
    )
    df = spark.range(0, ROWS, numPartitions=2).selectExpr("id AS n")
    report = write_dataframe(df, stack(case.sink, DeadLetter(letters)))
    assert (report.delivered, report.dead_letters, report.failed) == (ROWS - 1, 1, 0)
    assert [path.read_text() for path in tmp_path.glob("letters*") if path.stat().st_size] == [
        json.dumps({"n": BAD}) + "\n"
    ]
