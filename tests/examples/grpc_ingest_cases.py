"""The gRPC service and its client over loopback: in this process in front of a scripted sink, and
as a separate process in front of PostgreSQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("grpc_tools")
pytest.importorskip("grpc_status")

import asyncpg
import grpc
from google.rpc.error_details_pb2 import RetryInfo
from tests.examples.apps.service import service
from tests.examples.example import DOCS, EXAMPLES, ROOT, load

from sluicegate import (
    Batcher,
    Limits,
    PermanentError,
    Retry,
    TransientError,
    UnknownOutcomeError,
    stack,
)
from sluicegate.testing import ScriptedSink, fail, hang, ok, partial

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from sluicegate.batcher import LoopClock

PAGE = DOCS / "how-to/use-with-a-framework.md"
Code = grpc.StatusCode
SMALL = Limits(max_items=1, max_pending_items=2)
EAGER = Limits(max_items=10, max_delay=0.0)
SLOW_TABLE = """
CREATE TABLE events (id bigint PRIMARY KEY, action text NOT NULL);
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.05); RETURN NULL; END';
CREATE TRIGGER slow AFTER INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION slow();
"""
PATIENT = 30.0  # seconds; no test takes as long


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the modules that the page's command generates."""
    (command,) = re.findall(
        r"^\$ python (-m grpc_tools.protoc .*)$", PAGE.read_text(), re.MULTILINE
    )
    folder = tmp_path_factory.mktemp("generated")
    (folder / "ingest.proto").write_text((EXAMPLES / "ingest.proto").read_text())
    subprocess.run([sys.executable, *shlex.split(command)], cwd=folder, check=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def programs(generated: Path) -> tuple[Any, Any]:
    """The service and the client."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(generated))
        return load("grpc_ingest"), load("grpc_send")


@pytest.fixture
def early(programs: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The service answers within a second, so most of a call's time is left for the answer."""
    monkeypatch.setattr(programs[0], "SHARE", 0.03)


@dataclass
class Client:
    """A stub for calls of one event, a blocking one for streams, and their messages."""

    stub: Any
    blocking: Any
    messages: Any
    sender: Any

    def event(self, number: int, action: str = "login") -> Any:
        return self.messages.Event(id=number, action=action)

    async def store(self, number: int, seconds: float = PATIENT, action: str = "login") -> Any:
        return await self.stub.Store(self.event(number, action), timeout=seconds)

    async def stream(self, numbers: Sequence[int], seconds: float = PATIENT) -> Any:
        return await self.send(iter([self.event(number) for number in numbers]), seconds)

    async def send(self, events: Iterator[Any], seconds: float | None = PATIENT) -> Any:
        return await asyncio.to_thread(self.blocking.StoreAll, events, timeout=seconds)

    async def refusal(self, call: Any) -> Refusal:
        with pytest.raises(grpc.RpcError) as caught:
            await call
        error: Any = caught.value
        info = self.sender.details_of(error, RetryInfo)
        stored = self.sender.details_of(error, self.messages.Stored)
        return Refusal(
            error.code(),
            error.details(),
            None if info is None else info.retry_delay.ToTimedelta().total_seconds(),
            None if stored is None else stored.count,
        )


@dataclass
class Refusal:
    """How a call ended, with the parsed details of its status."""

    code: Any
    text: str
    retry_after: float | None = None
    stored: int | None = None


@contextlib.asynccontextmanager
async def client_at(address: str, programs: tuple[Any, Any]) -> AsyncIterator[Client]:
    sender = programs[1]
    stub = sender.ingest_pb2_grpc.IngestStub
    with grpc.insecure_channel(address) as blocking:
        async with grpc.aio.insecure_channel(address) as channel:
            yield Client(stub(channel), stub(blocking), sender.ingest_pb2, sender)


@contextlib.asynccontextmanager
async def served(
    batcher: Batcher[Any], programs: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> AsyncIterator[tuple[Client, contextlib.AsyncExitStack]]:
    """A client of the service in this process, and what closes the service."""
    caplog.set_level("INFO", logger="ingest")
    async with contextlib.AsyncExitStack() as server:
        await server.enter_async_context(programs[0].serving(batcher, "127.0.0.1:0"))
        (address,) = re.findall(r"listening on (\S+)", caplog.text)[-1:]
        async with client_at(address, programs) as client:
            yield client, server


async def test_one_event_is_answered_once_stored_and_a_bad_one_is_refused(
    real_clock: LoopClock, programs: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    sink: ScriptedSink[Any] = ScriptedSink(
        [ok(), fail(PermanentError("no")), fail(UnknownOutcomeError("cut"))]
    )
    async with Batcher(sink, limits=EAGER) as batcher:
        async with served(batcher, programs, caplog) as (client, _):
            assert (await client.store(1)).count == 1
            assert sink.applied == [(1, "login")]
            refused = Refusal(Code.INVALID_ARGUMENT, "the table refuses the event")
            assert await client.refusal(client.store(2)) == refused
            cut = Refusal(Code.DEADLINE_EXCEEDED, "a write was cut off; the event may be stored")
            assert await client.refusal(client.store(3)) == cut
            for bad in [client.store(0), client.store(1, action=""), client.store(1, action="\0")]:
                assert (await client.refusal(bad)).code is Code.INVALID_ARGUMENT
            large = await client.refusal(client.store(4, action="x" * 20_000))
            assert (large.code, large.retry_after) == (Code.RESOURCE_EXHAUSTED, None)
    assert sink.applied == [(1, "login")]


@pytest.mark.usefixtures("early")
async def test_a_full_ledger_is_refused_with_retry_info_at_the_deadline(
    real_clock: LoopClock, programs: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    sink: ScriptedSink[Any] = ScriptedSink([hang()])
    async with Batcher(sink, limits=SMALL) as batcher:
        async with served(batcher, programs, caplog) as (client, _):
            first = asyncio.ensure_future(client.store(1))
            await sink.wait_for_call()
            await batcher.add((0, "the last place"))
            full = await client.refusal(client.store(2))
            assert (full.code, full.retry_after) == (Code.RESOURCE_EXHAUSTED, 5.0)
            stream = await client.refusal(client.stream([3, 4]))
            assert (stream.code, stream.retry_after) == (Code.RESOURCE_EXHAUSTED, 5.0)
            assert stream.stored == 0
            await batcher.shutdown(0)
            assert (await client.refusal(first)).code is Code.DEADLINE_EXCEEDED  # unknown
            assert (await client.refusal(client.store(5))).code is Code.UNAVAILABLE
    assert batcher.tally().accepted == 2


@pytest.mark.usefixtures("early")
async def test_a_deadline_after_acceptance_says_that_the_event_is_still_written(
    real_clock: LoopClock, programs: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()

    async def held(scene: Any) -> None:
        await release.wait()
        scene.apply_all()

    sink: ScriptedSink[Any] = ScriptedSink([held])
    async with Batcher(sink, limits=EAGER) as batcher:
        async with served(batcher, programs, caplog) as (client, _):
            late = await client.refusal(client.store(1))
            accepted = "accepted, and not stored in time; the event is still written"
            assert late == Refusal(Code.DEADLINE_EXCEEDED, accepted)
            release.set()
    assert sink.applied == [(1, "login")]


async def test_a_stream_counts_the_events_before_the_first_that_failed(
    real_clock: LoopClock, programs: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    sink: ScriptedSink[Any] = ScriptedSink([ok(), partial({2: PermanentError("no")})], default=ok())
    async with Batcher(stack(sink, Retry()), limits=Limits(max_items=5, max_delay=0.05)) as batcher:
        async with served(batcher, programs, caplog) as (client, _):
            assert (await client.stream(range(1, 6))).count == 5
            failed = await client.refusal(client.stream(range(11, 16)))
            assert (failed.code, failed.stored) == (Code.INVALID_ARGUMENT, 2)
            invalid = await client.refusal(client.stream([21, 22, 0, 24]))
            assert (invalid.code, invalid.text) == (Code.INVALID_ARGUMENT, "id must be positive")
            assert invalid.stored == 2
            assert (await client.stream([])).count == 0
    ids = [number for number, _ in sink.applied]
    assert ids == [*range(1, 6), 11, 12, 14, 15, 21, 22]


@pytest.mark.usefixtures("early")
async def test_a_stream_is_not_read_while_the_ledger_is_full(
    real_clock: LoopClock, programs: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """An endless stream stops where the flow-control window of its connection ends, and its
    deadline answers with the number of stored events.
    """
    sink: ScriptedSink[Any] = ScriptedSink([ok()], default=hang())
    sent = 0

    def endless(client: Client) -> Iterator[Any]:
        nonlocal sent
        while True:
            sent += 1
            yield client.event(sent, "x" * 10_000)

    async with Batcher(sink, limits=SMALL) as batcher:
        async with served(batcher, programs, caplog) as (client, _):
            full = await client.refusal(client.send(endless(client)))
            assert (full.code, full.stored) == (Code.DEADLINE_EXCEEDED, 1)  # the second is accepted
            assert 2 <= sent < 1000
            await batcher.shutdown(0)
    assert [number for number, _ in sink.applied] == [1]


@pytest.mark.usefixtures("early")
async def test_a_stream_leaves_room_in_the_ledger_and_ends_before_its_deadline(
    real_clock: LoopClock,
    programs: tuple[Any, Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs[0], "WINDOW", 2)
    sink: ScriptedSink[Any] = ScriptedSink([ok()], default=hang())
    async with Batcher(sink, limits=Limits(max_items=1, max_pending_items=50)) as batcher:
        async with served(batcher, programs, caplog) as (client, _):
            late = await client.refusal(client.stream(range(1, 10)))
            assert (late.code, late.stored) == (Code.DEADLINE_EXCEEDED, 1)
            assert batcher.tally().accepted == 3
            await batcher.shutdown(0)


async def test_a_shutdown_ends_a_stream_with_its_count(
    real_clock: LoopClock, programs: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    sink: ScriptedSink[Any] = ScriptedSink(default=ok())

    over = threading.Event()

    def idle(client: Client) -> Iterator[Any]:
        for number in (1, 2, 3):
            yield client.event(number)
        over.wait(PATIENT)

    async with Batcher(sink, limits=Limits(max_items=3)) as batcher:
        async with served(batcher, programs, caplog) as (client, server):
            call = asyncio.ensure_future(client.refusal(client.send(idle(client))))
            await sink.wait_for_call()
            await server.aclose()
            assert await call == Refusal(Code.UNAVAILABLE, "shutting down", stored=3)
            over.set()
    assert [number for number, _ in sink.applied] == [1, 2, 3]


async def test_a_shutdown_lets_open_calls_finish(
    real_clock: LoopClock,
    programs: tuple[Any, Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs[0], "GRACE", PATIENT)
    release = asyncio.Event()

    async def held(scene: Any) -> None:
        await release.wait()
        scene.apply_all()

    sink: ScriptedSink[Any] = ScriptedSink([held])
    async with Batcher(sink, limits=EAGER) as batcher:
        async with served(batcher, programs, caplog) as (client, server):
            call = asyncio.ensure_future(client.store(1))
            await sink.wait_for_call()
            closing = asyncio.ensure_future(server.aclose())
            refused = await client.refusal(client.store(2))
            assert refused.code in {Code.UNAVAILABLE, Code.CANCELLED}
            assert not closing.done()
            release.set()
            assert (await call).count == 1
            await closing
    assert sink.applied == [(1, "login")]


async def test_a_shutdown_cuts_calls_after_its_grace_and_still_writes_their_events(
    real_clock: LoopClock,
    programs: tuple[Any, Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs[0], "GRACE", 0.1)
    release = asyncio.Event()

    async def held(scene: Any) -> None:
        await release.wait()
        scene.apply_all()

    sink: ScriptedSink[Any] = ScriptedSink([held])
    async with Batcher(sink, limits=EAGER) as batcher:
        async with served(batcher, programs, caplog) as (client, server):
            call = asyncio.ensure_future(client.refusal(client.store(1)))
            await sink.wait_for_call()
            await server.aclose()
            cut = await call
            assert cut.code in {Code.UNAVAILABLE, Code.CANCELLED}, cut
            release.set()
    assert sink.applied == [(1, "login")]


class Crowd:
    """Clients that send the next event as soon as the last one is answered, and one endless stream."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.acknowledged: set[int] = set()
        self.codes: set[Any] = set()
        self.enough = asyncio.Event()
        self._numbers = iter(range(1, 1_000_000))

    async def one_by_one(self) -> None:
        """Send events until the service is gone."""
        for number in self._numbers:
            try:
                await self.client.store(number)
            except grpc.aio.AioRpcError as error:
                self.codes.add(error.code())
                return
            self.acknowledged.add(number)
            if len(self.acknowledged) >= 200:
                self.enough.set()

    async def endless(self) -> Refusal:
        """Stream events from the second million on."""
        events = (self.client.event(number) for number in range(1_000_001, 2_000_000))
        ended = await self.client.refusal(self.client.send(events, None))
        self.acknowledged |= set(range(1_000_001, 1_000_001 + (ended.stored or 0)))
        return ended


async def test_what_was_acknowledged_before_sigterm_is_in_the_table_and_nothing_else(
    real_clock: LoopClock,
    programs: tuple[Any, Any],
    generated: Path,
    database: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Calls in flight finish, so the table has no event without an acknowledgement either."""
    connection = await asyncpg.connect(database)
    await connection.execute(SLOW_TABLE)
    command = (sys.executable, str(EXAMPLES / "grpc_ingest.py"), database)
    path = os.pathsep.join([str(generated), os.environ.get("PYTHONPATH", "")])
    async with service(
        *command, "--address", "127.0.0.1:0", env={"PYTHONPATH": path}, folder=ROOT
    ) as running:
        address = (await running.line(r"listening on (\S+)"))[1]
        await programs[1].send(address, 10_000, first_id=3_000_001)
        assert capsys.readouterr().out == "10000 stored\n"
        async with client_at(address, programs) as client, asyncio.TaskGroup() as group:
            crowd = Crowd(client)
            stream = group.create_task(crowd.endless())
            for _ in range(20):
                group.create_task(crowd.one_by_one())
            await crowd.enough.wait()
            code = await running.terminate()
    assert code == 0, running.lines
    assert crowd.codes <= {Code.UNAVAILABLE, Code.CANCELLED}
    ended = stream.result()
    assert ended.code is Code.UNAVAILABLE
    stored = {row["id"] for row in await connection.fetch("SELECT id FROM events")}
    await connection.close()
    if ended.stored is None:  # gRPC loses the answer if the connection ends while the client sends
        assert "Stream removed" in ended.text
        streamed = {each for each in stored if 1_000_000 < each < 2_000_000}
        assert streamed == set(range(1_000_001, 1_000_001 + len(streamed)))
        crowd.acknowledged |= streamed
    assert stored == crowd.acknowledged | set(range(3_000_001, 3_010_001))


async def test_the_client_continues_behind_the_events_that_are_stored(
    real_clock: LoopClock, programs: tuple[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Retried after an outage that used up the attempts; an invalid event is raised."""
    sink: ScriptedSink[Any] = ScriptedSink([partial({3: TransientError("no")})], default=ok())
    async with Batcher(sink, limits=Limits(max_items=5, max_delay=0.05)) as batcher:
        async with served(batcher, programs, caplog) as (client, _):
            await programs[1].store_all(client.blocking, [client.event(n) for n in range(1, 6)])
            with pytest.raises(grpc.RpcError, match="id must be positive"):
                await programs[1].store_all(client.blocking, [client.event(0)])
    assert [number for number, _ in sink.applied] == [1, 2, 3, 5, 4, 5]
