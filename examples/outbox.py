"""An outbox: a web handler appends a message in the transaction of its order, and a relay moves the
messages on, in order per stream.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import asyncpg

from penstock import Batcher, Retry, flow, stack
from penstock.sources.postgres_stream import PostgresStreamSource
from penstock.streams import NO_STREAM, NewMessage, StreamLog, install_streams
from penstock.testing import embedded_postgres

if TYPE_CHECKING:
    from penstock import Batch, Message
    from penstock.streams import StreamNotifier

LOG = StreamLog()


class Shop:
    """An ASGI application: `POST /orders/17` places an order."""

    def __init__(self, pool: asyncpg.Pool[Any], notifier: StreamNotifier) -> None:
        self._pool = pool
        self._notifier = notifier

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        number = int(scope["path"].rpartition("/")[2])
        order = json.loads((await receive())["body"])
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                await connection.execute(
                    "INSERT INTO orders VALUES ($1, $2)", number, order["amount"]
                )
                placed = NewMessage("OrderPlaced", {"order": number, **order})
                await LOG.append(connection, f"order-{number}", placed, expected=NO_STREAM)
        except asyncpg.IntegrityConstraintViolationError:
            status = 409
        else:
            self._notifier.appended()  # after the commit; without it the relay polls
            status = 201
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def to_event(message: Message) -> dict[str, Any]:
    return {"key": message.key, **json.loads(message.value)}


async def publish(events: Batch[dict[str, Any]]) -> None:
    """Any sink does, such as KafkaSink or HttpSink."""
    for event in events:
        print("published:", event)


def make_relay(dsn: str) -> flow.Pipe:
    source = PostgresStreamSource(dsn, subscription="relay", category="order", ends=True)
    batcher = Batcher(stack(publish, Retry(attempts=5)), key=lambda event: event["key"])
    return flow.pipe(source, batcher, to_event, name="relay")


async def post(app: Shop, path: str, order: dict[str, int]) -> None:
    """What a web server does with a request."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(order).encode()}

    async def send(answer: dict[str, Any]) -> None:
        if "status" in answer:
            print("POST", path, answer["status"])

    await app({"type": "http", "path": path}, receive, send)


async def main(dsn: str) -> None:
    await install_streams(dsn)
    async with asyncpg.create_pool(dsn, min_size=0) as pool, LOG.notifier(pool=pool) as notifier:
        await pool.execute(
            "CREATE TABLE orders (number int PRIMARY KEY, amount int CHECK (amount > 0))"
        )
        app = Shop(pool, notifier)
        await post(app, "/orders/17", {"amount": 30})
        await post(app, "/orders/18", {"amount": -1})
        await post(app, "/orders/17", {"amount": 45})
    await make_relay(dsn).run()


if __name__ == "__main__":
    with embedded_postgres() as server:
        asyncio.run(main(server.dsn))
