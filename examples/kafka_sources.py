"""Sources of Kafka: the topics, the start point, the login, and the times of commits."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sluicegate import Consumer
from sluicegate.consumer import Commits
from sluicegate.kafka import KafkaAccess, KafkaSource

if TYPE_CHECKING:
    from sluicegate import Message


def what_to_read(bootstrap: str) -> list[KafkaSource]:
    # --8<-- [start:topics]
    one = KafkaSource("orders", bootstrap=bootstrap, group="billing")
    several = KafkaSource("orders", "returns", bootstrap=bootstrap, group="billing")
    matching = KafkaSource(pattern=r"orders-[a-z]+$", bootstrap=bootstrap, group="billing")
    # --8<-- [end:topics]
    return [one, several, matching]


def where_to_begin(bootstrap: str) -> list[KafkaSource]:
    # --8<-- [start:start]
    yesterday = datetime.now(UTC) - timedelta(days=1)
    recent = KafkaSource("orders", bootstrap=bootstrap, group="billing", start=yesterday)
    # --8<-- [end:start]
    return [recent]


def how_to_log_in(bootstrap: str) -> list[KafkaSource]:
    # --8<-- [start:login]
    encrypted = KafkaSource(
        "orders",
        bootstrap=KafkaAccess(
            bootstrap,
            security_protocol="SASL_SSL",
            ssl_cafile=os.environ.get("KAFKA_CA"),
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username="billing",
            sasl_password=os.environ["KAFKA_PASSWORD"],
        ),
        group="billing",
    )
    # --8<-- [end:login]
    return [encrypted]


async def store_by_hand(bootstrap: str) -> int:
    # --8<-- [start:commit]
    source = KafkaSource("orders", bootstrap=bootstrap, group="by-hand")
    consumer = Consumer(source, name="billing", commits=Commits(every=60.0, after=5_000))
    handled = 0

    async def bill(message: Message) -> None:
        nonlocal handled
        handled += 1
        if message.header("last-of-day") is not None:
            await consumer.commit()  # the messages settled by now; this one is not
            consumer.stop()

    async with consumer:
        await consumer.run(bill)
    # --8<-- [end:commit]
    return handled
