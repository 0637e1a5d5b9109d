"""Every Python snippet of every page runs unchanged, with the names that its page assumes."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import dataclass, make_dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from tests.docs.pages import ROOT, pages_with_snippets, snippets
from tests.examples.example import load

from sluicegate import Batcher, Consumer, PermanentError, RowBatch, WriteResult, flow
from sluicegate.consumer import MemoryLog, MemoryParkStore, MemorySource
from sluicegate.consumer.jobs import EventContext, Incomplete, Interjector, JobScheduler
from sluicegate.postgres import PostgresSink, install_streams
from sluicegate.sinks import MemorySink
from sluicegate.telemetry import alert_rules
from sluicegate.testing.servers.program import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sluicegate import Batch, Message
    from sluicegate.testing import EmbeddedKafka

BY_OTHER_TESTS = {
    "how-to/coalesce-requests.md": "tests/examples/test_coalescing.py",
    "how-to/write-to-a-file.md": "tests/examples/test_items_page.py",
    "how-to/deliver-exactly-once-from-spark.md": "tests/spark/test_page_snippets.py",
    "how-to/run-a-pipeline.md": "tests/spark/test_page_snippets.py",
    "how-to/write-from-spark.md": "tests/spark/test_page_snippets.py",
    "index.md": "tests/examples/test_readme.py",
}

TAKEN_FOR_GRANTED: dict[str, tuple[str, ...]] = {
    "how-to/consume-from-jetstream.md": (),
    "how-to/consume-from-kafka.md": (),
    "how-to/enqueue-jobs.md": ("dsn",),
    "how-to/handle-messages.md": ("redis", "pool"),
    "how-to/keep-an-outbox.md": ("dsn",),
    "how-to/keep-dead-letters.md": ("dsn",),
    "how-to/keep-order-per-key.md": ("sink", "letters"),
    "how-to/retries-and-dead-letters.md": ("source",),
    "how-to/size-a-batcher.md": ("sink",),
    "how-to/spool.md": ("sink",),
    "how-to/operate.md": (),
    "how-to/test-your-code.md": ("MySource",),
    "how-to/try-again.md": ("dsn", "columns", "write_rows"),
    "how-to/write-to-http.md": ("token",),
    "how-to/use-a-schema-registry.md": (),
    "how-to/write-to-kafka.md": ("password",),
    "how-to/write-to-objects.md": (),
    "how-to/write-to-redis.md": (),
    "how-to/write-your-own-sink.md": (
        *("client", "MySink", "orders_table", "search_index", "dashboard"),
        *("clicks", "orders", "others", "counters"),
    ),
    "reference/sources.md": (),
    "tutorial/a-first-consumer.md": ("source", "letters"),
}
"""By page, the names that the reader must define. The tests below run the other pages."""

BELOW = {
    "how-to/complete-events-later.md",
    "how-to/install-in-postgresql.md",
    "how-to/keep-state.md",
    "how-to/operate-a-queue.md",
    "how-to/source-into-postgresql.md",
    "how-to/use-with-a-framework.md",
    "how-to/watch-with-prometheus.md",
    "how-to/troubleshooting.md",
    "how-to/exactly-once.md",
    "how-to/write-to-postgresql.md",
}


def names(*wanted: str) -> dict[str, Any]:
    """The objects that a reader would have under these names."""

    async def write_rows(batch: Batch[Any]) -> None: ...

    log = MemoryLog()
    log.produce("orders", {"customer": "ann"}, key="ann")
    every = {
        "dsn": "postgresql://localhost/app",
        "columns": ("id", "action"),
        "password": "correct-horse",
        "event": {"customer": "acme", "order": 7},
        "write_rows": write_rows,
        "source": MemorySource(log, ends=True),
        "MySource": MemorySource,
        "client": SimpleNamespace(post_many=write_rows),
    }
    return {name: every.get(name, MemorySink()) for name in wanted}


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Runner]:
    """Runs the snippets of a page on one loop, in the test's own folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", names("dsn")["dsn"])
    with asyncio.Runner() as made:
        yield made


def test_every_page_is_run_by_a_test() -> None:
    pages = pages_with_snippets()
    assert sorted([*TAKEN_FOR_GRANTED, *BELOW, *BY_OTHER_TESTS]) == pages
    for page, test in BY_OTHER_TESTS.items():
        assert page in (ROOT / test).read_text()


@pytest.mark.parametrize("page", TAKEN_FOR_GRANTED)
def test_a_page(page: str, runner: asyncio.Runner) -> None:
    given = names(*TAKEN_FOR_GRANTED[page])
    for snippet in snippets(page):
        snippet.run(runner, given)


# -- pages that need more --------------------------------------------------------------------------


def test_threads(runner: asyncio.Runner) -> None:
    call, handler, served = snippets("how-to/use-with-a-framework.md")
    before = signal.getsignal(signal.SIGTERM)

    async def in_a_thread() -> None:
        async with Batcher(sink := MemorySink[int]()) as batcher:
            given = {"batcher": batcher, "item": 7, "loop": asyncio.get_running_loop()}
            await asyncio.to_thread(call.run, runner, given)
        assert sink.items == [7]

    runner.run(in_a_thread())
    handler.run(runner, {})
    try:
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    served.run(runner, {})


def test_write_to_postgresql(
    runner: asyncio.Runner, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    growing, changing, rotating, trusted, pooled = snippets("how-to/write-to-postgresql.md")
    order = make_dataclass("Order", [("id", int), ("amount", float)])
    given: dict[str, Any] = {"dsn": database, "vault": object(), "Order": order}

    async def set_up() -> None:
        con = await asyncpg.connect(database)
        await con.execute(
            "CREATE TABLE customers (id int PRIMARY KEY, name text, address text); "
            "INSERT INTO customers VALUES (2)"
        )
        await con.close()

    runner.run(set_up())
    growing.run(runner, given)
    assert '"amount" numeric(12, 2), PRIMARY KEY ("id")' in capsys.readouterr().out
    changing.run(runner, given)

    async def customers() -> list[tuple[Any, ...]]:
        con = await asyncpg.connect(database)
        found = await con.fetch("SELECT * FROM customers")
        await con.close()
        return [*map(tuple, found)]

    assert runner.run(customers()) == [(1, "Anna", "Bern")]
    rotating.run(runner, given)
    trusted.run(runner, given)
    pooled.run(runner, given)
    runner.run(given["pool"].close())


def test_write_in_a_transaction(runner: asyncio.Runner, database: str) -> None:
    (named,) = snippets("how-to/exactly-once.md")
    given: dict[str, Any] = {"batches": [RowBatch([(n,)]) for n in range(3)], "total": 3}
    given |= {"batch_id": 4, "bucket": 0}

    async def rows() -> int:
        con = await asyncpg.connect(database)
        await con.execute("CREATE TABLE IF NOT EXISTS number (n int)")
        found: int = await con.fetchval("SELECT count(*) FROM number")
        await con.close()
        return found

    assert runner.run(rows()) == 0
    given["sink"] = PostgresSink(database, table="number", columns=("n",))
    given["sink"] = runner.run(given["sink"].__aenter__())
    for _ in range(2):
        named.run(runner, given)
    runner.run(given["sink"].__aexit__(None, None, None))
    assert runner.run(rows()) == 3


def test_operate_a_queue(runner: asyncio.Runner, database: str) -> None:
    administration, monitor = snippets("how-to/operate-a-queue.md")
    runner.run(install_streams(database))
    given: dict[str, Any] = {"dsn": database}
    administration.run(runner, given)
    assert "mails" in str(given["report"])
    monitor.run(runner, {"dsn": database})


def test_operate_streams(runner: asyncio.Runner, database: str) -> None:
    runner.run(install_streams(database))
    (monitor,) = snippets("how-to/install-in-postgresql.md")
    monitor.run(runner, {"dsn": database})


def test_watch_with_prometheus(
    runner: asyncio.Runner, database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    consumer, streams, queues, dies, collects, boards, rules, traces = snippets(
        "how-to/watch-with-prometheus.md"
    )
    runner.run(install_streams(database))
    given: dict[str, Any] = {"dsn": database, **names("source")}
    for snippet in (consumer, streams, queues, dies, traces):
        snippet.run(runner, given)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    collects.run(runner, given)
    assert given["metrics"]() == b""
    boards.run(runner, given, **{"/var/lib/grafana/dashboards": str(tmp_path)})
    assert len([*tmp_path.glob("sluicegate-*.json")]) == 4
    rules.run(runner, given, **{"/etc/prometheus": str(tmp_path)})
    assert (tmp_path / "sluicegate.yml").read_text() == alert_rules()


def test_troubleshooting(runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    lag, probes, guarded = snippets("how-to/troubleshooting.md")
    log = MemoryLog()
    log.produce("orders", 1, key="a")

    async def handle(message: Message) -> None: ...

    consumer = Consumer(MemorySource(log, ends=True), name="billing")
    given: dict[str, Any] = {"consumer": consumer, "handle": handle}
    monkeypatch.setenv("PROBES_TOKEN", "s3cret")
    for served in (probes, guarded):
        served.run(runner, given, **{"0.0.0.0": "127.0.0.1", "8080": str(free_port())})
    given["consumer"] = runner.run(Consumer(MemorySource(log)).__aenter__())
    lag.run(runner, given)
    runner.run(given["consumer"].__aexit__(None, None, None))


def test_work_between_events(runner: asyncio.Runner, database: str) -> None:
    now, stored = snippets("how-to/complete-events-later.md")[4:]
    log = MemoryLog()
    log.produce("users", {"user": "ann"}, key="ann")
    ran: list[Any] = []

    async def function(context: EventContext) -> None:
        ran.append(context.partition)

    async def run() -> None:
        begun: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def handle(context: EventContext) -> None:
            begun.set_result(context.partition)

        async with Consumer(MemorySource(log), ordering="partition") as consumer:
            running = asyncio.create_task(consumer.run_events(handle))
            given = {"consumer": consumer, "function": function, "partition": await begun}
            await now.run_within(given)
            consumer.stop()
            await running

    runner.run(run())
    assert len(ran) == 2
    program = load("park_and_retry")

    async def run_stored() -> None:
        writes = program.Writes(program.Table())
        given = {"dsn": database, "writes": writes, "every": Interjector(writes.retry, every=1.0)}
        await stored.run_within({**given, **names("source")})

    runner.run(run_stored())


async def start(context: EventContext) -> Incomplete:
    """A handler that completes its event immediately, in place of a job."""
    context.store.put(context.key, context.value)
    context.job_complete(done)
    return Incomplete()


async def done(context: EventContext) -> None:
    """A finaliser without an effect."""


@pytest.mark.long
def test_complete_events_later(runner: asyncio.Runner, broker: EmbeddedKafka) -> None:
    forwards, by_type, by_hand, again = snippets("how-to/complete-events-later.md")[:4]
    broker.create_topic("replies")

    @dataclass
    class Placed:
        customer: str

    async def process(key: object, value: object) -> None: ...

    async def finalise(context: EventContext, key: str, value: Any, error: object) -> None:
        context.forward({"to": key})

    async def handle(context: EventContext) -> Incomplete:
        return orders.schedule(context, context.key, context.value)

    orders = JobScheduler(process, finalise)
    given = {"handle": handle, "orders": orders, **names("source")}
    forwards.run(runner, given, **{"localhost:9092": broker.bootstrap})
    assert runner.run(values_of("replies", broker, 1)) == [{"to": "ann"}]
    by_type.run(runner, {**given, "Placed": Placed, **names("source")})
    by_hand.run(runner, {"start": start})
    again.run(runner, names("reservations"))


def test_keep_state(runner: asyncio.Runner, broker: EmbeddedKafka) -> None:
    packed, in_kafka = snippets("how-to/keep-state.md")
    packed.run(runner, names("dsn"))
    for topic in ("orders_to_sum", "totals"):
        broker.create_topic(topic)
    replaced = {"localhost:9092": broker.bootstrap, '"orders"': '"orders_to_sum"'}

    async def run() -> list[Any]:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            for amount in (5, 7):
                order = json.dumps({"amount": amount}).encode()
                await producer.send_and_wait("orders_to_sum", order, key=b"ann")
        given: dict[str, Any] = {}
        running = asyncio.create_task(in_kafka.run_within(given, **replaced))
        reading = asyncio.create_task(values_of("totals", broker, 2))
        await asyncio.wait([running, reading], return_when="FIRST_COMPLETED")
        totals = await reading
        running.cancel()
        await asyncio.wait([running])
        return totals

    assert runner.run(run()) == [5, 12]


async def values_of(topic: str, broker: EmbeddedKafka, count: int) -> list[Any]:
    """The first values of a topic, decoded from JSON."""
    options: dict[str, Any] = {"auto_offset_reset": "earliest"}
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=broker.bootstrap, **options)
    async with asyncio.timeout(60.0), consumer:
        return [json.loads((await consumer.getone()).value or b"") for _ in range(count)]


async def waited_for(is_so: Callable[[], object]) -> None:
    """Return when the condition holds; the loop runs meanwhile."""
    async with asyncio.timeout(30.0):
        while not is_so():  # noqa: ASYNC110  # nothing tells when a key is blocked or parked
            await asyncio.sleep(0)


@pytest.mark.filterwarnings("ignore:parked=MemoryParkStore")
def test_source_into_postgresql(runner: asyncio.Runner, capsys: pytest.CaptureFixture[str]) -> None:
    blocked, parked, by_account, watched, probed, once = snippets(
        "how-to/source-into-postgresql.md"
    )

    async def refuse_bob(batch: Batch[Any]) -> WriteResult:
        errors = {at: PermanentError("no") for at, row in enumerate(batch) if row == b"bob"}
        return WriteResult.failed(batch, errors)

    def to_row(message: Message) -> object:
        return message.key

    def parts() -> dict[str, Any]:
        log = MemoryLog()
        for account in (b"ann", b"bob", b"bob"):
            log.produce("payments", b"5", key=account)
        return {
            "source": MemorySource(log),
            "batcher": Batcher[Any](refuse_bob, key=lambda row: row),
            "to_row": to_row,
        }

    async def run_blocked() -> None:
        given = parts()
        pipe = flow.pipe(*given.values(), name="ledger", poison="block")
        running = asyncio.create_task(pipe.run())
        await pipe.wait_ready()
        await waited_for(lambda: pipe.blocked)
        blocked.run(runner, {"pipe": pipe})
        await watched.run_within({"pipe": pipe})
        pipe.stop()
        await running

    async def run_parked() -> None:
        """The three dots represent the time in which the pipe runs."""
        given: dict[str, Any] = {**parts(), "flow": flow, "store": MemoryParkStore()}
        made, _, unparked = parked.text.partition("...\n")
        parked._replace(text=made).run(runner, given)
        pipe = given["pipe"]
        running = asyncio.create_task(pipe.run())
        await pipe.wait_ready()
        await waited_for(lambda: pipe.parked)
        await parked._replace(text=unparked).run_within(given)
        pipe.stop()
        await running

    async def run_probed() -> None:
        given = parts()
        pipe = flow.pipe(*given.values(), name="ledger", poison="skip")
        port = str(free_port())
        running = asyncio.create_task(
            probed.run_within({"pipe": pipe}, **{"0.0.0.0": "127.0.0.1", "8080": port})
        )
        await pipe.wait_ready()
        pipe.stop()
        await running

    runner.run(run_blocked())
    assert capsys.readouterr().out.startswith("payments/0@1 (key b'bob', ")
    runner.run(run_parked())
    runner.run(run_probed())
    by_account.run(runner, {**parts(), "store": MemoryParkStore(), "account_of": to_row})
    once.run(runner, names("dsn"))
