"""Events over HTTP into PostgreSQL: 202 if an event is in the ledger, 503 if it is not. Usage:
python ingest_service.py DSN [options].
"""

import argparse
import asyncio
import contextlib
import json
import logging
import math
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import fields
from typing import cast

import asyncpg
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import sluicegate
from sluicegate.postgres import PostgresSink
from sluicegate.telemetry import PrometheusObserver

TABLE = "CREATE TABLE IF NOT EXISTS events (id bigint PRIMARY KEY, action text NOT NULL)"
PATIENCE = 0.1  # seconds that a request may wait for room
RETRY_AFTER = 5.0  # seconds, unless the batcher suggests another value
LARGEST_BODY = 16 * 1024
LARGEST_ID = 2**63 - 1

Event = tuple[int, str]
logger = logging.getLogger("ingest")


# -- HTTP ------------------------------------------------------------------------------------------


class Endpoints:
    """The responses of the service. They depend on the batcher, not on the database."""

    def __init__(self, batcher: sluicegate.Batcher[Event], registry: CollectorRegistry) -> None:
        self.batcher = batcher
        self.registry = registry

    # --8<-- [start:events]
    async def events(self, request: Request) -> Response:
        event = parsed(await body_of(request))
        throttled = self.batcher.stats().throttled_seconds
        if throttled:
            return busy("the database asks for a pause", throttled)
        try:
            await self.batcher.add(event, timeout=PATIENCE)
        except sluicegate.AddTimeout as full:
            return busy("no room", full.retry_after)
        except sluicegate.errors.BatcherBroken:
            raise  # waiting does not help: 500
        except sluicegate.ClosedError:
            return busy("shutting down", RETRY_AFTER)
        return Response(status_code=202)

    # --8<-- [end:events]

    async def ready(self, request: Request) -> Response:
        state = self.batcher.stats().state
        return PlainTextResponse(f"{state}\n", 200 if state == "open" else 503)

    async def stats(self, request: Request) -> Response:
        stats = self.batcher.stats()
        lines = [
            f"{field.name} {getattr(stats.tally, field.name)}" for field in fields(stats.tally)
        ]
        lines += [
            f"inside {stats.tally.inside}",
            f"capacity {stats.capacity_items}",
            f"waiting {stats.waiting_producers}",
        ]
        lines += [f"flushes_{reason} {count}" for reason, count in stats.flushes.items()]
        return PlainTextResponse("\n".join(lines) + "\n")

    async def metrics(self, request: Request) -> Response:
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/events", self.events, methods=["POST"]),
                Route("/ready", self.ready),
                Route("/stats", self.stats),
                Route("/metrics", self.metrics),
            ]
        )


def busy(why: str, seconds: float) -> Response:
    return PlainTextResponse(f"{why}\n", 503, headers={"Retry-After": str(math.ceil(seconds))})


async def body_of(request: Request) -> bytes:
    """Read the body, up to a maximum size: the ledger counts items, so memory is bounded only if
    their size is.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY:
            raise HTTPException(413, f"an event has at most {LARGEST_BODY} bytes")
    return bytes(body)


def parsed(body: bytes) -> Event:
    """Parse and check an event. After a 202 a refusal by the table can no longer be reported, so
    invalid rows are refused here.
    """
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "not JSON") from None
    event = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    number, action = event.get("id"), event.get("action")
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) > LARGEST_ID:
        raise HTTPException(400, "id must be an integer of 64 bits")
    if not isinstance(action, str) or not storable(action):
        raise HTTPException(400, "action must be a string without NUL and lone surrogates")
    return number, action


def storable(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


# -- the process -----------------------------------------------------------------------------------


class Server(uvicorn.Server):
    """A server without signal handlers: `sluicegate.run` handles signals. uvicorn would raise them
    again at its end, and the exit code would not be 0.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(app: Starlette, listener: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """Serve until the block ends; then accept no more connections, respond to pending requests, and
    return.
    """
    server = Server(
        uvicorn.Config(
            app, lifespan="off", log_level="warning", access_log=False, timeout_graceful_shutdown=5
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield task
    finally:
        server.should_exit = True
        await task


# --8<-- [start:serve]
async def serve(batcher: sluicegate.Batcher[Event], dsn: str, listener: socket.socket) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLE)
    await connection.close()
    # Left from the inside out: the server stops, so no request can add; then the batcher drains;
    # then it closes the sink.
    async with batcher, serving(Endpoints(batcher, REGISTRY).app(), listener) as server:
        host, port = listener.getsockname()[:2]
        logger.info("listening on http://%s:%d", host, port)
        await asyncio.shield(server)


# --8<-- [end:serve]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsn")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-items", type=int, default=500)
    parser.add_argument("--max-delay", type=float, default=0.05)
    parser.add_argument("--max-pending-items", type=int, default=10_000)
    parser.add_argument("--shutdown-deadline", type=float, default=20.0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    sink = sluicegate.stack(
        PostgresSink(options.dsn, table="events", columns=("id", "action"), on_conflict="ignore"),
        sluicegate.Timeout(5.0),
        sluicegate.Retry(attempts=5),
    )
    batcher: sluicegate.Batcher[Event] = sluicegate.Batcher(
        sink,
        name="ingest",
        limits=sluicegate.Limits(
            max_items=options.max_items,
            max_delay=options.max_delay,
            max_pending_items=options.max_pending_items,
        ),
        shutdown_deadline=options.shutdown_deadline,
        observers=[PrometheusObserver(REGISTRY)],
    )
    with socket.create_server((options.host, options.port), backlog=2048) as listener:
        sluicegate.run(serve(batcher, options.dsn, listener))  # exits with 1 if events were lost


if __name__ == "__main__":
    main()
