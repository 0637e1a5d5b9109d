"""The FastAPI sample: its responses on virtual time, and the process in front of a PostgreSQL that
is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.examples.apps.service import (
    TABLE,
    UNHURRIED,
    Crowd,
    Service,
    assert_nothing_is_lost,
    crowd_of,
    query,
    service,
)
from tests.examples.example import load, printed_on

from sluicegate import (
    Batcher,
    Limits,
    PermanentError,
    Retry,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
    stack,
)
from sluicegate.testing import ScriptedSink, fail, hang, ok
from sluicegate.testing import embedded_postgres as another_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sluicegate.testing import EmbeddedPostgres, FakeClock

UVICORN = (sys.executable, "-m", "uvicorn", "fastapi_app:app", "--port", "0")
OPTIONS = ("--no-access-log", "--timeout-graceful-shutdown", "5")
CLIENTS = 20
DOWN = 25  # probes of a database that is down, at most 5 s apart
SMALL = Limits(max_items=1, max_pending_items=2)
EVENT = {"id": 1, "action": "login"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://127.0.0.1:1/none")


@contextlib.asynccontextmanager
async def client_of(batcher: Batcher[Any]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app, with this batcher in place of the lifespan's."""
    app = load("apps/fastapi_app").app

    async def with_state(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "state": {"batcher": batcher}}, receive, send)

    transport = httpx.ASGITransport(with_state)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client


async def test_outcomes_become_statuses(fake_clock: FakeClock) -> None:
    """201 once it is stored; otherwise by what failed, whose fault it is, and whether it may be
    stored.
    """
    failures = (PermanentError("no"), TransientError("lost"), UnknownOutcomeError("cut"))
    sink: ScriptedSink[Any] = ScriptedSink([ok(), *(fail(error) for error in failures)])
    async with Batcher(sink, limits=SMALL) as batcher, client_of(batcher) as client:
        answers = [await client.post("/events/stored", json=EVENT) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [201, 422, 503, 504]
        outcomes = ["delivered", "rejected", "rejected", "unknown"]
        assert [answer.json()["outcome"] for answer in answers] == outcomes
        assert f"{answers[0].text}\n" == printed_on("how-to/use-with-a-framework.md")[0]
        assert (await client.post("/events", json={"id": 1, "action": "\0"})).status_code == 422


async def test_an_outcome_that_does_not_come_is_pending(fake_clock: FakeClock) -> None:
    """The event stays inside and is written."""
    sink: ScriptedSink[Any] = ScriptedSink([hang()])
    async with Batcher(sink, limits=SMALL) as batcher, client_of(batcher) as client:
        before = fake_clock.now()
        answer = await client.post("/events/stored", json=EVENT)
        assert (answer.status_code, answer.json()) == (202, {"outcome": "pending"})
        assert fake_clock.now() - before == pytest.approx(2.0)
        report = await batcher.shutdown(1.0)
        assert report.tally.unknown == 1


async def test_retry_after_grows_with_the_outage(fake_clock: FakeClock) -> None:
    """5 s at first, then the duration of the outage, then half a minute; not ready by then, but
    always alive. A recovery is detected without traffic.
    """
    sink: ScriptedSink[Any] = ScriptedSink([fail(UnavailableError("down"))] * DOWN)
    async with (
        Batcher(stack(sink, Retry()), limits=SMALL) as batcher,
        client_of(batcher) as client,
    ):
        for _ in range(2):
            assert (await client.post("/events", json=EVENT)).status_code == 202
        pauses: list[int] = []
        for _ in range(4):
            answer = await client.post("/events", json=EVENT)
            assert answer.status_code == 503
            pauses.append(int(answer.headers["Retry-After"]))
            await fake_clock.advance(12.0)
        assert pauses == [5, 13, 25, 30]
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/live")).status_code == 200
        await sink.wait_for_call(DOWN + 1)
        await fake_clock.advance(10.0)
        assert (await client.get("/ready")).status_code == 200


async def test_ready_again_when_nothing_is_left_to_probe_with(fake_clock: FakeClock) -> None:
    """The state of the destination stays; otherwise a replica without traffic would never be
    ready.
    """
    sink: ScriptedSink[Any] = ScriptedSink([fail(UnavailableError("down"))] * DOWN)
    async with (
        Batcher(stack(sink, Retry(give_up_after=60.0)), limits=SMALL) as batcher,
        client_of(batcher) as client,
    ):
        assert (await client.post("/events", json=EVENT)).status_code == 202
        await fake_clock.advance(50.0)
        assert (await client.get("/ready")).status_code == 503
        await fake_clock.advance(20.0)
        assert batcher.stats().destination.state == "unavailable"
        assert (await client.get("/ready")).status_code == 200


async def test_closed_and_broken(fake_clock: FakeClock) -> None:
    """Events and readiness answer 503 in both states; only a broken batcher requests a new
    process.
    """
    refusing: ScriptedSink[Any] = ScriptedSink([fail(PermanentError("no"))])
    async with (
        Batcher(refusing, limits=SMALL, on_failure="crash") as batcher,
        client_of(batcher) as client,
    ):
        assert (await client.post("/events", json=EVENT)).status_code == 202
        await fake_clock.advance(0)
        answer = await client.post("/events", json=EVENT)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert (await client.get("/ready")).text == "broken\n"
        assert (await client.get("/live")).status_code == 503
    async with Batcher(ScriptedSink[Any]()) as batcher, client_of(batcher) as client:
        await batcher.shutdown()
        assert (await client.post("/events", json=EVENT)).status_code == 503
        assert (await client.get("/ready")).text == "closed\n"
        assert (await client.get("/live")).status_code == 200


async def stopped_under_load(dsn: str) -> tuple[Crowd, Service, int]:
    await query(dsn, "DROP TABLE IF EXISTS events", TABLE)
    env = {"DATABASE_URL": dsn, **UNHURRIED}
    async with service(*UVICORN, *OPTIONS, env=env) as running:
        async with crowd_of(CLIENTS, await running.url()) as crowd:
            await crowd.more(202, 300)
            code = await running.terminate()
    return crowd, running, code


def test_sigterm_in_the_middle_loses_nothing(embedded_postgres: EmbeddedPostgres) -> None:
    """Every event answered with 202 is in the table."""
    crowd, running, code = asyncio.run(stopped_under_load(embedded_postgres.dsn))
    stored = asyncio.run(query(embedded_postgres.dsn, "SELECT id FROM events"))
    assert_nothing_is_lost(crowd, stored)
    (report,) = running.reports()
    assert report == {"accepted": len(stored), "delivered": len(stored)}
    assert code == -signal.SIGTERM  # uvicorn raises the signal again at the end


async def with_a_crash(server: EmbeddedPostgres) -> tuple[Crowd, list[str]]:
    env = {"DATABASE_URL": server.dsn, "MAX_PENDING_ITEMS": "1000", "NOT_READY_AFTER": "0"}
    await query(server.dsn, TABLE)
    await asyncio.to_thread(server.kill)
    async with service(*UVICORN, *OPTIONS, env=env) as running:
        url = await running.url()
        async with httpx.AsyncClient(base_url=url, timeout=20.0) as client:
            early = await client.post("/events", json={"id": 10**6, "action": "early"})
            assert early.status_code == 202
            ready = [(await client.get("/ready")).text]
            assert (await client.get("/live")).status_code == 200
        await asyncio.to_thread(server.start)
        async with (
            httpx.AsyncClient(base_url=url, timeout=20.0) as client,
            crowd_of(CLIENTS, url) as crowd,
        ):
            good, bad = {"id": -2, "action": "good"}, {"id": -1, "action": "bad"}
            while (await client.post("/events/stored", json=good)).status_code != 201:
                pass  # each of them waits for the opening
            assert (await client.post("/events/stored", json=bad)).status_code == 422
            await crowd.more(202, 100)
            ready.append((await client.get("/ready")).text)
            await asyncio.to_thread(server.kill)
            await crowd.more(503, 50)
            ready.append((await client.get("/ready")).text)
            await asyncio.to_thread(server.start)
            await crowd.more(202, 50)
            ready.append((await client.get("/ready")).text)
            assert 'batcher_items_total{name="events"' in (await client.get("/metrics")).text
            await running.terminate()
    return crowd, ready


@pytest.mark.long
def test_a_killed_database_pushes_back_and_loses_nothing() -> None:
    """Down at the start, and killed later: 503 with Retry-After and not ready meanwhile; then
    everything continues.
    """
    with another_server({"fsync": "off"}) as server:
        crowd, ready = asyncio.run(with_a_crash(server))
        stored = asyncio.run(query(server.dsn, "SELECT id FROM events WHERE id >= 0"))
    stored.remove(10**6)  # accepted before the database was available
    assert set(crowd.statuses.values()) == {202, 503}
    assert all(pause is not None and 5 <= int(pause) <= 30 for pause in crowd.retry_after)
    assert ready[0] == "opening\n"
    assert ready[1] == ready[3] == "ready\n"
    assert ready[2].startswith("unavailable for ")
    assert_nothing_is_lost(crowd, stored)
