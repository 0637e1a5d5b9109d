"""Sources of JetStream: the key, the start point, the login, an existing consumer, and a divided
stream.
"""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sluicegate import Consumer
from sluicegate.nats import JetStreamSource, partitioned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sluicegate import Message


def what_is_the_key(servers: str) -> list[JetStreamSource]:
    # --8<-- [start:keys]
    def tenant(subject: str, headers: Mapping[str, str]) -> str:
        return headers.get("Tenant") or subject.split(".")[1]

    by_subject = JetStreamSource("ORDERS", servers=servers, durable="billing")
    by_token = JetStreamSource("ORDERS", servers=servers, durable="billing", key=2)
    by_tokens = JetStreamSource("ORDERS", servers=servers, durable="billing", key=(2, 3))
    by_header = JetStreamSource("ORDERS", servers=servers, durable="billing", key="header:Customer")
    by_function = JetStreamSource("ORDERS", servers=servers, durable="billing", key=tenant)
    # --8<-- [end:keys]
    return [by_subject, by_token, by_tokens, by_header, by_function]


def what_to_read(servers: str) -> list[JetStreamSource]:
    # --8<-- [start:subjects]
    several = JetStreamSource(
        "ORDERS", servers=servers, durable="billing", subjects=["orders.eu.>", "returns.eu.>"]
    )
    # --8<-- [end:subjects]
    return [several]


def where_to_begin(servers: str) -> list[JetStreamSource]:
    # --8<-- [start:start]
    yesterday = datetime.now(UTC) - timedelta(days=1)
    recent = JetStreamSource("ORDERS", servers=servers, durable="billing", start=yesterday)
    # --8<-- [end:start]
    return [recent]


def how_to_log_in() -> list[JetStreamSource]:
    # --8<-- [start:login]
    encrypted = JetStreamSource(
        "ORDERS",
        servers=["tls://nats-0:4222", "tls://nats-1:4222"],
        durable="billing",
        user="billing",
        password=os.environ["NATS_PASSWORD"],
        tls=ssl.create_default_context,
    )
    # --8<-- [end:login]
    return [encrypted]


# --8<-- [start:bound]
async def serve(servers: str, bill: Callable[[Message], Awaitable[None]]) -> None:
    source = JetStreamSource("ORDERS", servers=servers, durable="billing", create=False)
    await Consumer(source, name="billing", in_flight=500).run(bill)


# --8<-- [end:bound]
def how_a_stream_is_divided() -> list[tuple[str, str]]:
    # --8<-- [start:partitioned]
    by_customer = partitioned("orders.*", 8)
    by_second = partitioned("orders.*.*", 8, tokens=[2])
    by_both = partitioned("orders.*.*", 8, tokens=[1, 2])
    # --8<-- [end:partitioned]
    return [by_customer, by_second, by_both]
