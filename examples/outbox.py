"""An outbox: a web handler appends a message in the transaction of its order, and a relay forwards the
messages, in order per stream.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from sluicegate import Batcher, Retry, flow, stack
from sluicegate.postgres import (
    NO_STREAM,
    NewMessage,
    PostgresAccess,
    PostgresStreamSource,
    StreamLog,
    install_streams,
)
from sluicegate.testing import embedded_postgres

if TYPE_CHECKING:
    from starlette.requests import Request

    from sluicegate import Batch, Message
    from sluicegate.postgres import StreamNotifier

TABLE = "CREATE TABLE orders (number int PRIMARY KEY, amount int CHECK (amount > 0))"
LOG = StreamLog()


def make_app(pool: asyncpg.Pool[Any], notifier: StreamNotifier) -> Starlette:
    async def place(request: Request) -> Response:
        number, order = request.path_params["number"], json.loads(await request.body())
        placed = NewMessage("OrderPlaced", {"order": number, **order})
        try:
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute(
                    "INSERT INTO orders VALUES ($1, $2)", number, order["amount"]
                )
                await LOG.append(connection, f"order-{number}", placed, expected=NO_STREAM)
        except asyncpg.IntegrityConstraintViolationError:
            return Response(status_code=409)
        notifier.appended()  # after the commit; without it the relay polls
        return Response(status_code=201)

    return Starlette(routes=[Route("/orders/{number:int}", place, methods=["POST"])])


def to_event(message: Message) -> dict[str, Any]:
    return {"id": message.header("id"), "key": message.key, **json.loads(message.value)}


async def publish(events: Batch[dict[str, Any]]) -> None:
    """Any sink works here, such as KafkaSink or HttpSink."""
    for event in events:
        print("published:", event["key"], event["amount"])


def make_relay(dsn: str, sink: Any, *, ends: bool = False) -> flow.Pipe:
    source = PostgresStreamSource(dsn, subscription="relay", category="order", ends=ends)
    batcher = Batcher(stack(sink, Retry(attempts=5)), key=lambda event: event["key"])
    return flow.pipe(source, batcher, to_event, name="relay")


async def main(dsn: str) -> None:
    await install_streams(dsn)
    async with (
        asyncpg.create_pool(dsn, min_size=0) as pool,
        LOG.notifier(PostgresAccess(pool=pool)) as notifier,
    ):
        await pool.execute(TABLE)
        transport = httpx.ASGITransport(make_app(pool, notifier))
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            for number, amount in [(17, 30), (18, -1), (17, 45)]:
                answer = await client.post(f"/orders/{number}", json={"amount": amount})
                print("POST", answer.url.path, answer.status_code)
    await make_relay(dsn, publish, ends=True).run()


if __name__ == "__main__":
    with embedded_postgres() as server:
        asyncio.run(main(server.dsn))
