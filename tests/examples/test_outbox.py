"""The page on the outbox: its program runs on a database and prints the output on the page; its web
handler creates one message for each order, and no others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx
from tests.examples.example import load, printed_on

from sluicegate.postgres import PostgresAccess, install_streams

if TYPE_CHECKING:
    import pytest

    from sluicegate import Batch
    from sluicegate.batcher import LoopClock

ORDERS = 20


def test_messages_leave_only_with_their_orders(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An order refused by the database has none."""
    asyncio.run(load("outbox").main(database))
    assert capsys.readouterr().out == printed_on("how-to/keep-an-outbox.md")[0]


async def test_requests_side_by_side_leave_a_message_for_each_order(
    database: str, real_clock: LoopClock
) -> None:
    """Each order is posted twice concurrently, beside requests that fail in the transaction. A
    relay that runs with the server sends one message for each order, and a later one sends no more.
    """
    module, sent = load("outbox"), list[str]()

    async def sink(events: Batch[dict[str, Any]]) -> None:
        sent.extend(event["key"] for event in events)
        if len(sent) >= ORDERS:
            relay.stop()

    relay = module.make_relay(database, sink)
    await install_streams(database)
    async with (
        asyncpg.create_pool(database) as pool,
        module.LOG.notifier(PostgresAccess(pool=pool)) as notifier,
    ):
        await pool.execute(module.TABLE)
        _, codes = await asyncio.gather(relay.run(), posted(module.make_app(pool, notifier)))
        orders = await pool.fetch("SELECT number FROM orders")
    assert codes == {201: ORDERS, 409: ORDERS + 1, 500: 1, 405: 1}
    assert sorted(row["number"] for row in orders) == list(range(ORDERS))
    await module.make_relay(database, sink, ends=True).run()
    assert sorted(sent) == sorted(f"order-{number}" for number in range(ORDERS))


async def posted(app: Any) -> Counter[int]:
    """Post all concurrently; return the status codes."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        answers = await asyncio.gather(
            *(
                client.post(f"/orders/{at % ORDERS}", json={"amount": 1})
                for at in range(2 * ORDERS)
            ),
            client.post(f"/orders/{ORDERS}", json={"amount": 0}),
            client.post(f"/orders/{ORDERS + 1}", json={"amount": "many"}),
            client.get("/orders/0"),
        )
    return Counter(answer.status_code for answer in answers)
