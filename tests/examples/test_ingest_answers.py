"""The responses of the ingest service, on virtual time and without a socket."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from tests.examples.example import load

from sluicegate import Batcher, Limits, PermanentError, Retry, ThrottledError, stack
from sluicegate.testing import ScriptedSink, fail, hang

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sluicegate.testing import FakeClock

SMALL = Limits(max_items=1, max_pending_items=2)
EVENT = {"id": 1, "action": "login"}


@contextlib.asynccontextmanager
async def client_of(batcher: Batcher[Any]) -> AsyncIterator[httpx.AsyncClient]:
    app = load("ingest_service").Endpoints(batcher, CollectorRegistry()).app()
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client


async def test_accepted_then_refused_after_a_tenth_of_a_second(fake_clock: FakeClock) -> None:
    """B-T37: 202 when accepted; 503 with Retry-After if there is no capacity for 100 ms."""
    sink: ScriptedSink[Any] = ScriptedSink([hang()])
    async with Batcher(sink, limits=SMALL) as batcher, client_of(batcher) as client:
        assert [(await client.post("/events", json=EVENT)).status_code for _ in range(2)] == [
            202,
            202,
        ]
        before = fake_clock.now()
        answer = await client.post("/events", json=EVENT)
        assert fake_clock.now() - before == pytest.approx(0.1)
        assert (answer.status_code, answer.headers["Retry-After"], answer.text) == (
            503,
            "5",
            "no room\n",
        )
        assert "inside 2\n" in (await client.get("/stats")).text
        await batcher.shutdown(1.0)


async def test_a_throttled_destination_is_passed_on(fake_clock: FakeClock) -> None:
    """B-T37: while the destination requests a pause, the response is 503 at once, with the rest of
    that pause.
    """
    sink: ScriptedSink[Any] = ScriptedSink([fail(ThrottledError("slow down", retry_after=30.0))])
    async with Batcher(stack(sink, Retry()), limits=SMALL) as batcher, client_of(batcher) as client:
        assert (await client.post("/events", json=EVENT)).status_code == 202
        await sink.wait_for_call(1)
        await fake_clock.advance(10.0)
        answer = await client.post("/events", json=EVENT)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "20")
        await fake_clock.advance(30.0)
        assert (await client.post("/events", json=EVENT)).status_code == 202


async def test_closed_and_broken(fake_clock: FakeClock) -> None:
    """B-T37: 503 once the batcher is closed; 500 once it has stopped permanently, when waiting does
    not help. Readiness shows both.
    """
    async with (
        Batcher(
            ScriptedSink[Any]([fail(PermanentError("no"))]), limits=SMALL, on_failure="crash"
        ) as batcher,
        client_of(batcher) as client,
    ):
        assert (await client.get("/ready")).status_code == 200
        assert (await client.post("/events", json=EVENT)).status_code == 202
        await fake_clock.advance(0)
        assert (await client.post("/events", json=EVENT)).status_code == 500
        assert (await client.get("/ready")).text == "broken\n"
        await batcher.shutdown()
    async with Batcher(ScriptedSink[Any]()) as batcher, client_of(batcher) as client:
        await batcher.shutdown()
        answer = await client.post("/events", json=EVENT)
        assert (answer.status_code, answer.headers["Retry-After"], answer.text) == (
            503,
            "5",
            "shutting down\n",
        )
        ready = await client.get("/ready")
        assert (ready.status_code, ready.text) == (503, "closed\n")
