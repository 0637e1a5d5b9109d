"""HTTP probes, through an ASGI client and over a socket.

White box: the type of the application, which no package exports.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from consumer_help import Recorder, log_of
from watch_help import Gate, running

from sluicegate import Batcher, ConfigError, Consumer, flow
from sluicegate.consumer import MemorySource, probes, serve_probes
from sluicegate.sinks import MemorySink
from sluicegate.telemetry import PrometheusConsumerObserver

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sluicegate.consumer.operating.probes import Probes
    from sluicegate.testing import FakeClock


ANY = Consumer(MemorySource(log_of()))


async def get(
    app: Probes,
    path: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    peer: str = "10.0.0.7",
) -> httpx.Response:
    """Send a request to the application."""
    transport = httpx.ASGITransport(app=app, client=(peer, 123))
    async with httpx.AsyncClient(transport=transport, base_url="http://probes") as client:
        return await client.request(method, path, headers=headers)


async def test_readiness_follows_the_life_of_a_consumer(fake_clock: FakeClock) -> None:
    """O-T10, consumer/C:B4: false before it runs, while it drains, and while the source fails."""
    source = MemorySource(log_of("a"), clock=fake_clock)
    consumer, gate = Consumer(source, clock=fake_clock, name="billing"), Gate()
    app = probes(consumer)

    async def answer(path: str) -> tuple[int, str]:
        response = await get(app, path)
        return response.status_code, response.text.strip()

    assert await answer("/ready") == (503, "billing: not ready: it is not open")
    assert await answer("/live") == (200, "billing: live")
    async with consumer:
        assert await answer("/ready") == (503, "billing: not ready: it does not run yet")
        run = asyncio.create_task(consumer.run(gate))
        await consumer.wait_ready()
        assert await answer("/ready") == (200, "billing: ready")
        source.report("no broker")
        assert await answer("/ready") == (
            503,
            "billing: not ready: its source cannot deliver: no broker",
        )
        source.report(None)
        consumer.stop()
        await fake_clock.run_until_idle()
        assert await answer("/ready") == (503, "billing: not ready: it drains")
        assert await answer("/live") == (200, "billing: live")
        gate.open()
        await run
    assert await answer("/ready") == (503, "billing: not ready: it has ended")
    assert await answer("/live") == (503, "billing: not live: it has ended")


async def test_a_verbose_request_gets_the_explanation(fake_clock: FakeClock) -> None:
    """consumer/C:B4, consumer/C:N5."""
    async with running(fake_clock, log_of("a"), Gate(), name="billing") as consumer:
        app = probes(consumer)
        brief, verbose = await get(app, "/ready"), await get(app, "/ready?verbose")
        assert brief.text == "billing: ready\n"
        assert verbose.text.startswith("billing: ready\nbilling: 1 messages inside\n")
        assert "key 'a'" in verbose.text
        as_json = {"accept": "application/json"}
        assert (await get(app, "/live?verbose=1", headers=as_json)).json() == {
            "live": True,
            "consumers": [
                {
                    "name": "billing",
                    "live": True,
                    "reason": None,
                    "explanation": str(consumer.explain()).splitlines(),
                }
            ],
        }
    closed = Consumer(MemorySource(log_of()), name="closed")
    assert "closed is not open" in (await get(probes(closed), "/live?verbose")).text


async def test_one_that_is_not_ready_fails_the_probe_of_all(fake_clock: FakeClock) -> None:
    """consumer/C:B4."""
    other = Consumer(MemorySource(log_of()), name="other")
    async with running(fake_clock, log_of("a"), Recorder(), name="first") as consumer:
        response = await get(probes(consumer, other), "/ready", headers={"accept": "*/*"})
        assert response.status_code == 503
        assert response.text == "first: ready\nother: not ready: it is not open\n"


async def test_a_stall_is_dead_only_if_that_is_wanted(fake_clock: FakeClock) -> None:
    """consumer/C:B4."""
    async with running(fake_clock, log_of("a"), Gate(), stall_after=5.0) as consumer:
        await fake_clock.advance(10.0)
        assert consumer.stalled
        assert (await get(probes(consumer), "/live")).status_code == 200
        response = await get(probes(consumer, restart_when_stalled=True), "/live")
        assert response.status_code == 503
        assert "nothing has been settled" in response.text


async def test_other_requests_are_refused(fake_clock: FakeClock) -> None:
    app = probes(Consumer(MemorySource(log_of()), clock=fake_clock))
    assert (await get(app, "/")).status_code == 404
    for method, path, allowed in (
        ("POST", "/live", "GET, HEAD"),
        ("POST", "/stats", "GET, HEAD"),
        ("GET", "/drain", "POST"),
        ("HEAD", "/drain", "POST"),
    ):
        response = await get(app, path, method=method, peer="127.0.0.1")
        assert (response.status_code, response.headers["allow"]) == (405, allowed)
    head = await get(app, "/live", method="HEAD")
    assert (head.status_code, head.text) == (200, "")
    assert head.headers["content-length"] == str(len(b"consumer: live\n"))


async def test_it_can_be_mounted_in_an_application(fake_clock: FakeClock) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    app = probes(Consumer(MemorySource(log_of()), clock=fake_clock))
    mounted = httpx.ASGITransport(Starlette(routes=[Mount("/health", app)]))
    async with httpx.AsyncClient(transport=mounted, base_url="http://x") as client:
        assert (await client.get("/health/live")).status_code == 200


async def test_it_takes_part_in_the_lifespan_and_closes_websockets(fake_clock: FakeClock) -> None:
    app = probes(Consumer(MemorySource(log_of()), clock=fake_clock))
    events = iter(["lifespan.startup", "lifespan.shutdown"])
    sent: list[str] = []

    async def receive() -> dict[str, str]:
        return {"type": next(events)}

    async def send(message: object) -> None:
        sent.append(message["type"])  # type: ignore[index]

    await app({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    await app({"type": "websocket"}, receive, send)
    assert sent[-1] == "websocket.close"


async def test_metrics_are_served_beside_the_probes(
    fake_clock: FakeClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of one registry, by default the global one, in the format that the scrape accepts."""
    pytest.importorskip("prometheus_client")
    from prometheus_client import CollectorRegistry, Counter, values

    own, newer = CollectorRegistry(), {"accept": "application/openmetrics-text"}
    for registry in (own, None):
        seen = [PrometheusConsumerObserver(registry, lag_every=None)]
        options: dict[str, Any] = {"name": "billing", "observers": seen}
        async with running(fake_clock, log_of("a"), Recorder(), **options) as consumer:
            app = probes(consumer, registry=registry)
            await fake_clock.run_until_idle()
            response = await get(app, "/metrics")
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/plain; version=")
            assert 'source_acked_total{name="billing"} 1.0\n' in response.text
            response = await get(app, "/metrics", headers=newer)
            assert response.headers["content-type"].startswith("application/openmetrics-text")
            assert response.text.endswith("# EOF\n")
            assert (await get(probes(consumer, registry=own), "/metrics")).status_code == 200
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(values, "ValueClass", values.MultiProcessValue())  # type: ignore[no-untyped-call]
    Counter("jobs", "Jobs.", registry=CollectorRegistry()).inc()  # of any process
    assert "jobs_total 1.0\n" in (await get(app, "/metrics")).text
    monkeypatch.setattr("sluicegate.consumer.operating.probes.find_spec", lambda _: None)
    response = await get(app, "/metrics")
    assert response.status_code == 501
    assert 'pip install "sluicegate[prometheus]"' in response.text


async def test_it_is_served_over_a_socket_until_the_block_ends(
    real_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/C:B4: on loopback, without signal handlers or changes to the logging, and without a
    line for each request.
    """
    caplog.set_level(logging.DEBUG)
    source = MemorySource(log_of("a"))
    consumer = Consumer(source, name="billing", drain=0.1)
    handlers = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
    levels = [logging.getLogger(name).level for name in ("uvicorn", "uvicorn.error")]
    async with consumer, serve_probes(consumer, port=0) as (host, port):
        assert host == "127.0.0.1"
        assert handlers == [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
        run = asyncio.create_task(consumer.run(Recorder()))
        await consumer.wait_ready()
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
            assert (await client.get("/ready")).text == "billing: ready\n"
            consumer.stop()
            await run
            assert (await client.get("/ready")).status_code == 503
            assert (await client.get("/metrics")).status_code == 200
    assert [each for each in caplog.records if each.name == "uvicorn.access"] == []
    assert levels == [logging.getLogger(name).level for name in ("uvicorn", "uvicorn.error")]
    with pytest.raises(OSError), socket.create_connection((host, port), timeout=1):
        pass


async def test_a_drain_is_begun_and_followed_over_a_socket(real_clock: object) -> None:
    """With the token or from loopback; a header that names an address changes nothing for the
    better.
    """
    consumer, gate = Consumer(MemorySource(log_of("a")), name="billing"), Gate()
    async with serve_probes(consumer, port=0, token="s3cret") as (host, port):
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
            early = await client.post("/drain")
            assert early.status_code == 409
            assert early.json()["consumers"][0]["reason"].startswith("billing is not open")
            async with consumer:
                run = asyncio.create_task(consumer.run(gate))
                await consumer.wait_ready()
                for forwarded in ("127.0.0.1", "10.0.0.7"):
                    response = await client.post("/drain", headers={"x-forwarded-for": forwarded})
                    assert response.status_code == 401
                    assert "it has the header x-forwarded-for" in response.text
                assert consumer.ready
                token = {"authorization": "Bearer s3cret", "x-forwarded-for": "10.0.0.7"}
                for headers in ({}, token):
                    response = await client.post("/drain", headers=headers)
                    assert response.status_code == 202
                    (told,) = response.json()["consumers"]
                    assert told["stats"]["state"] == "draining"
                gate.open()
                report = await run
            assert report.unfinished == ()
            (told,) = (await client.get("/stats")).json()["consumers"]
            assert (told["name"], told["stats"]["state"]) == ("billing", "closed")
            assert told["stats"]["counts"]["acked"] == 1
            assert (await client.post("/drain")).status_code == 202


async def test_statistics_are_json(fake_clock: FakeClock) -> None:
    """Of every consumer, open or not; a pipe's have those of its batcher."""
    pipe = flow.pipe(MemorySource(log_of("a"), clock=fake_clock), Batcher(MemorySink()))
    async with running(fake_clock, log_of("a"), Recorder(), name="billing") as consumer:
        run = asyncio.create_task(pipe.run())
        await fake_clock.run_until_idle()
        answer = await get(probes(consumer, pipe, ANY), "/stats", headers=LOCAL, peer="::1")
        pipe.stop()
        await run
    first, second, third = answer.json()["consumers"]
    assert first["stats"]["partitions"]["t/0"]["position"] == 1
    assert first["stats"]["is_ready"] is True
    assert second["stats"]["batcher"]["destination"]["state"] == "available"
    assert second["stats"]["source"]["deliveries"]["received"] == 1
    assert (third["stats"], third["reason"][:20]) == (None, "consumer is not open")


LOCAL = {"host": "localhost:8080"}
BEARER = {"authorization": "Bearer s3cret"}


@pytest.mark.parametrize(
    ("peer", "headers", "open_to", "guarded"),
    [
        ("127.0.0.1", LOCAL, 200, 200),
        ("127.8.0.1", {"host": "127.0.0.1"}, 200, 200),
        ("::1", {"host": "[::1]:8080"}, 200, 200),
        ("::ffff:127.0.0.1", LOCAL, 200, 200),
        ("10.0.0.7", LOCAL, 403, 401),
        ("::ffff:10.0.0.7", LOCAL, 403, 401),
        ("2001:db8::1", LOCAL, 403, 401),
        ("", LOCAL, 403, 401),  # a Unix socket, behind which a proxy is usual
        ("10.0.0.7", {**LOCAL, "x-forwarded-for": "127.0.0.1"}, 403, 401),
        ("127.0.0.1", {**LOCAL, "x-forwarded-for": "127.0.0.1"}, 403, 401),
        ("127.0.0.1", {**LOCAL, "forwarded": "for=127.0.0.1"}, 403, 401),
        ("127.0.0.1", {**LOCAL, "x-real-ip": "127.0.0.1"}, 403, 401),
        ("127.0.0.1", {**LOCAL, "via": "1.1 edge"}, 403, 401),
        ("127.0.0.1", {**LOCAL, "origin": "http://localhost:8080"}, 403, 401),
        ("127.0.0.1", {"host": "probes.example"}, 403, 401),
        ("127.0.0.1", {"host": "[::1"}, 403, 401),
        ("10.0.0.7", BEARER, 403, 200),
        ("10.0.0.7", {"authorization": "bearer  s3cret"}, 403, 200),
        ("10.0.0.7", {"authorization": "Basic s3cret"}, 403, 401),
        ("10.0.0.7", {"authorization": "Bearer s3cret2"}, 403, 401),
        ("10.0.0.7", {"authorization": "Bearer"}, 403, 401),
        ("10.0.0.7", {"authorization": "Bearer sécret"}, 403, 401),
        ("127.0.0.1", {**LOCAL, "authorization": "Bearer wrong"}, 200, 401),
    ],
)
async def test_statistics_and_the_drain_are_for_loopback_and_the_token(
    fake_clock: FakeClock, peer: str, headers: dict[str, str], open_to: int, guarded: int
) -> None:
    """Without a token, and with one. A refused drain drains nothing."""
    async with running(fake_clock, log_of("a"), Recorder(), name="billing") as consumer:
        for token, status in ((None, open_to), ("s3cret", guarded)):
            app = probes(consumer, token=token)
            encoded: Any = {name: value.encode("latin-1") for name, value in headers.items()}
            response = await get(app, "/stats", headers=encoded, peer=peer)
            assert response.status_code == status
            challenge = response.headers.get("www-authenticate", "")
            assert challenge.startswith("Bearer realm=") == (status == 401)
            assert ("invalid_token" in challenge) == (status == 401 and "authorization" in headers)
            if status == 403:
                assert "kubectl port-forward" in response.text
                assert "token=" in response.text
            if status != 200:
                drained = await get(app, "/drain", "POST", headers=encoded, peer=peer)
                assert drained.status_code == status
                assert consumer.ready
            assert "s3cret" not in response.text + repr(app) + repr(vars(app))


async def test_a_taken_port_is_an_error_at_the_entry(real_clock: object) -> None:
    consumer = Consumer(MemorySource(log_of()))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError, match="in use"):
            async with serve_probes(consumer, port=taken.getsockname()[1]):
                pass


@pytest.mark.parametrize(
    ("consumers", "options", "message"),
    [
        ((), {}, r"consumers=\(\): must be at least one consumer"),
        (("x",), {}, "consumers='x': must be consumers"),
        ((ANY,), {"restart_when_stalled": 1}, "restart_when_stalled=1: must be True"),
        ((ANY,), {"registry": "x"}, "registry='x': must be a CollectorRegistry"),
        ((ANY,), {"token": ""}, "token='': must be None, or visible ASCII"),
        ((ANY,), {"token": "s3cret\n"}, r"token='\.\.\.': .*strip the newline"),
        ((ANY,), {"token": b"s3cret"}, r"token='\.\.\.': must be None"),
    ],
)
def test_bad_arguments_are_refused(
    consumers: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        probes(*consumers, **options)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": -1}, "port=-1: must be a whole number"),
        ({"port": "80"}, "port='80': must be a whole number"),
        ({"port": 65536}, "port=65536: must be at most 65535"),
        ({"host": ""}, "host='': must be text"),
    ],
)
async def test_bad_addresses_are_refused(
    real_clock: object, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        async with serve_probes(Consumer(MemorySource(log_of())), **options):  # type: ignore[arg-type]
            pass
