"""Five programs of the guides as a reader runs them: from the wheel, in a clean environment, on real
servers; each is ended by SIGTERM and by SIGKILL at work, started again, and meets a poison record.
What the page says is what the destination then contains.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx
import pytest
from aiokafka import AIOKafkaProducer
from tests.examples.apps.service import PLAIN, service
from tests.examples.conftest import database
from tests.examples.example import DOCS, EXAMPLES
from tests.examples.reader import Reader, outside, reader_in

from sluicegate.postgres import QueueAdmin, install_streams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from sluicegate.testing import EmbeddedKafka

__all__ = ["database"]
pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("real_clock"),
    pytest.mark.timeout(900),  # the installation alone takes minutes on a busy machine
]

COUNT = 2_000
WITHIN = 400
GUIDES = ("use-with-a-framework", "source-into-postgresql", "consume-a-queue", "deliver-exactly-once-from-spark", "test-your-code")  # fmt: skip
INSTALLED = re.compile(r'(?:pip install "|needs `)sluicegate\[(\S+?)\]["`](.*)')
ANNOUNCED = """
CREATE FUNCTION announce() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_notify('news', ''); RETURN NULL; END $$;
CREATE TRIGGER announced AFTER INSERT ON {table} EXECUTE FUNCTION announce()
"""
PIPE = """\
import sys
import sluicegate
from kafka_to_postgres import make_pipe
sluicegate.run(make_pipe(*sys.argv[1:]).run())
"""
QUEUE = """\
import asyncio, sys
import asyncpg, sluicegate
from queue_sources import serve

async def main(dsn):
    async with asyncpg.create_pool(dsn) as pool:
        async def send(message):
            await pool.execute(
                "INSERT INTO sent (key, number) VALUES ($1, $2)", message.key, int(message.value)
            )
        await serve(dsn, send)

sluicegate.run(main(sys.argv[1]))
"""
A_TEST = """\
import asyncio

async def test_with_a_server(embedded_postgres, real_clock):
    print(embedded_postgres.dsn, flush=True)
    await asyncio.Event().wait()
"""


@pytest.fixture(scope="module")
def environment(index: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel with all that the five pages install."""
    made = reader_in(tmp_path_factory.mktemp("five"), index)
    extras, others = set[str](), set[str]()
    for guide in GUIDES:
        found = INSTALLED.findall((DOCS / f"how-to/{guide}.md").read_text())
        assert found, guide
        for names, rest in found:
            extras |= {*names.split(",")}
            others |= {*re.findall(r"^ ([a-z -]+)$", rest)}
    names = [name for each in others for name in each.split()]
    made.run(
        "-m", "pip", "install", "-q", f"sluicegate[{','.join(sorted(extras))}]", *names, seconds=600
    )
    return made.environment


@pytest.fixture
def reader(environment: Path, tmp_path: Path) -> Reader:
    """That environment, and a folder with the programs."""
    made = Reader(environment, tmp_path)
    for program in ("kafka_to_postgres.py", "queue_sources.py", "exactly_once_from_spark.py"):
        shutil.copy(EXAMPLES / program, tmp_path)
    shutil.copy(EXAMPLES / "apps/fastapi_app.py", tmp_path)
    for name, text in {"pipe.py": PIPE, "mails.py": QUEUE, "test_it.py": A_TEST}.items():
        (tmp_path / name).write_text(text)
    return made


class Table:
    """A table that announces its rows."""

    def __init__(self, con: asyncpg.Connection[Any], name: str) -> None:
        self.con = con
        self.name = name
        self._news = asyncio.Event()

    async def listen(self) -> None:
        await self.con.execute(ANNOUNCED.format(table=self.name))
        await self.con.add_listener("news", lambda *_: self._news.set())

    async def until(self, condition: str) -> None:
        """Wait for rows that satisfy this SQL condition on the table."""
        while not await self.con.fetchval(f"SELECT {condition} FROM {self.name}"):
            await self._news.wait()
            self._news.clear()

    async def all(self, columns: str, order: str) -> list[tuple[Any, ...]]:
        rows = await self.con.fetch(f"SELECT {columns} FROM {self.name} ORDER BY {order}")
        return [tuple(row) for row in rows]


@contextlib.asynccontextmanager
async def table(dsn: str, name: str, definition: str) -> AsyncIterator[Table]:
    """A new table."""
    con = await asyncpg.connect(dsn)
    await con.execute(f"CREATE TABLE {name} ({definition})")
    made = Table(con, name)
    await made.listen()
    try:
        yield made
    finally:
        await con.close()


class Running:
    """A program that runs; its log is read in the background."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stderr is not None
        self._log = asyncio.create_task(process.stderr.read())

    async def ended(self, ending: signal.Signals | None = None) -> int:
        """Wait for its end, caused by a signal to it and its children if one is given."""
        if ending is not None:
            os.killpg(self._process.pid, ending)
        sys.stderr.write((await self._log).decode())
        return await self._process.wait()


@contextlib.asynccontextmanager
async def started(reader: Reader, *args: str, **env: str) -> AsyncIterator[Running]:
    """A program of the reader; it is killed at the end of the block."""
    command, given = reader.command(*args), {**outside(), **env}
    async with service(*command, env=given, folder=reader.folder) as made:
        yield Running(made.process)


async def test_the_service(reader: Reader, database: str) -> None:
    """What was answered with 201 is in the table, through both ends; a refused event is a 422."""
    statuses: dict[int, int] = {}

    async def post(url: str, numbers: Iterable[int]) -> None:
        async with httpx.AsyncClient(base_url=url, verify=PLAIN, timeout=20.0) as client:
            for number in numbers:
                event = {"id": number, "action": "bad" if number == 7 else "login"}
                with contextlib.suppress(httpx.TransportError):
                    answer = await client.post("/events/stored", json=event)
                    statuses[number] = answer.status_code

    uvicorn = ("-m", "uvicorn", "fastapi_app:app", "--port", "0", "--no-access-log")
    stored = "id bigint PRIMARY KEY, action text CHECK (action <> 'bad')"
    command = reader.command(*uvicorn, "--timeout-graceful-shutdown", "5")
    env = {**outside(), "DATABASE_URL": database}
    async with asyncio.timeout(WITHIN), table(database, "events", stored) as events:
        for turn, ending in enumerate((signal.SIGTERM, signal.SIGKILL)):
            async with service(*command, env=env, folder=reader.folder) as running:
                sent = range(turn * COUNT, (turn + 1) * COUNT)
                posting = [
                    asyncio.create_task(post(url, sent[each::8]))
                    for url in [await running.url()]
                    for each in range(8)
                ]
                await events.until(f"count(*) FILTER (WHERE id >= {sent.start}) >= 100")
                running.process.send_signal(ending)
                await running.process.wait()
                await asyncio.gather(*posting)
        rows = {row[0] for row in await events.all("id", "id")}
    assert statuses[7] == 422
    told = {number for number, status in statuses.items() if status == 201}
    assert len(told) >= 100
    assert told <= rows
    assert 7 not in rows


async def test_the_pipe(reader: Reader, database: str, embedded_kafka: EmbeddedKafka) -> None:
    """Every record is in the table or a dead letter, and each account in order."""
    embedded_kafka.create_topic("payments", partitions=1)
    place = (
        "place text PRIMARY KEY, account text NOT NULL, amount integer NOT NULL CHECK (amount <> 0)"
    )
    async with (
        asyncio.timeout(WITHIN),
        table(database, "payments", f"{place}, n bigserial") as payments,
        AIOKafkaProducer(bootstrap_servers=embedded_kafka.bootstrap, acks="all") as producer,
    ):
        for turn, ending in enumerate((signal.SIGTERM, signal.SIGKILL, signal.SIGTERM)):
            async with started(reader, "pipe.py", embedded_kafka.bootstrap, database) as running:
                for at in range(turn * COUNT + 1, (turn + 1) * COUNT + 1):
                    value = b"thirty" if at == 7 else json.dumps({"amount": at if at != 9 else 0})
                    await producer.send(
                        "payments",
                        value if isinstance(value, bytes) else value.encode(),
                        key=f"a{at % 5}".encode(),
                        partition=0,
                    )
                await producer.flush()
                done = (turn + 1) * COUNT if turn == 2 else turn * COUNT + COUNT // 2
                await payments.until(f"coalesce(max(amount), 0) >= {done}")
                code = await running.ended(ending)
                assert code == (0 if ending is signal.SIGTERM else -signal.SIGKILL)
        rows = await payments.all("account, amount", "n")
    assert sorted(amount for _, amount in rows) == [
        at for at in range(1, 3 * COUNT + 1) if at not in {7, 9}
    ]
    for account in {account for account, _ in rows}:
        amounts = [amount for name, amount in rows if name == account]
        assert amounts == sorted(amounts)


async def test_the_queue(reader: Reader, database: str) -> None:
    """No job is lost, none is overtaken in its key, and the poisoned one parks its key alone."""
    await install_streams(database)
    async with QueueAdmin(database) as admin:
        await admin.create("mails")
    columns = "n bigserial, key text, number int CHECK (number <> 7)"
    async with asyncio.timeout(WITHIN), table(database, "sent", columns) as sent:
        for turn, ending in enumerate((signal.SIGTERM, signal.SIGKILL, signal.SIGTERM)):
            async with started(reader, "mails.py", database) as running:
                await sent.con.execute(
                    "INSERT INTO sluicegate.job (queue, key, payload) SELECT 'mails', 'k' || n % 10,"
                    " to_jsonb(n) FROM generate_series($1::int, $2) AS n",
                    turn * COUNT,
                    (turn + 1) * COUNT - 1,
                )
                whole = 3 * COUNT - 3 * COUNT // 10
                done = whole if turn == 2 else turn * COUNT + COUNT // 2
                await sent.until(f"count(DISTINCT number) FILTER (WHERE key <> 'k7') >= {done}")
                code = await running.ended(ending)
                assert code == (0 if ending is signal.SIGTERM else -signal.SIGKILL)
        rows = await sent.all("key, number", "n")
        async with QueueAdmin(database) as admin:
            keys = await admin.keys("mails")
            parked = [lane.key for lane in await keys.lanes("parked")]
    assert parked == ["k7"]
    for key in {key for key, _ in rows} - {"k7"}:
        first = list(dict.fromkeys(number for name, number in rows if name == key))
        assert first == list(range(int(key[1:]), 3 * COUNT, 10))


async def test_the_spark_job(reader: Reader, database: str) -> None:
    """Killed after its first rows, then repeated: each row is stored once. A row that the table
    refuses fails the job.
    """
    args = ("exactly_once_from_spark.py", database)
    python = reader.command()[0]
    columns = "account text, seq int, amount int"
    async with asyncio.timeout(WITHIN), table(database, "payments", columns) as payments:
        await payments.con.execute("ALTER TABLE payments ADD CHECK (amount <> 190)")
        async with started(reader, *args, PYSPARK_PYTHON=python) as running:
            assert await running.ended() == 1
        assert 190 not in {row[0] for row in await payments.all("amount", "amount")}
        await payments.con.execute("ALTER TABLE payments DROP CONSTRAINT payments_amount_check")
        async with started(reader, *args, PYSPARK_PYTHON=python) as running:
            await payments.until("count(*) > 0")
            await running.ended(signal.SIGKILL)
        async with started(reader, *args, PYSPARK_PYTHON=python) as running:
            assert await running.ended() == 0
        amounts = [row[0] for row in await payments.all("amount", "amount")]
    assert amounts == [10 * number for number in range(20)]


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
async def test_the_tests(reader: Reader, ending: signal.Signals) -> None:
    """However a run of tests ends, its server ends with it."""
    command = reader.command("-m", "pytest", "-q", "-s", "test_it.py")
    process = await asyncio.create_subprocess_exec(
        *command, cwd=reader.folder, env=outside(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    async with asyncio.timeout(WITHIN):
        assert process.stdout is not None
        async for line in process.stdout:
            if found := re.search(rb"postgresql://\S+", line):
                break
        else:
            raise AssertionError("no server was announced")
        con = await asyncpg.connect(found[0].decode())
        ended = asyncio.Event()
        con.add_termination_listener(lambda _: ended.set())
        process.send_signal(ending)
        await ended.wait()
        await process.wait()
        with pytest.raises(OSError):
            await asyncpg.connect(found[0].decode())
