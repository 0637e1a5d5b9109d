"""Brokers that are killed, unreachable, or deny access: the reason is named and ends with its
cause.

White box: the source looks at its brokers more often.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest
from tests.kafka.confluent.confluent_help import PROTOCOLS, source_of, stored
from tests.kafka.source.kafka_help import fill, new_name, new_topic
from tests.kafka.source.own_help import OwnKafka, grant, login
from tests.kafka.source.proxy_help import proxied
from tests.kafka.source.storm_help import log_lines, member, run
from tests.kafka.source.test_troubles import delivers, troubled

from sluicegate.kafka import KafkaAccess
from sluicegate.kafka.confluent import sessions

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import EmbeddedKafka

LASTS = {"session_timeout": 30.0}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check for missing topics more often than every five seconds."""
    monkeypatch.setattr(sessions, "REFRESH_EVERY", 0.2)


@pytest.mark.long
def test_a_broker_that_is_killed_under_load_and_started_again_loses_nothing(
    own_broker: OwnKafka,
) -> None:
    """consumer/C:C6, consumer/C:N12: records finished during the outage are committed after it, and
    none is handled twice.
    """
    run(_killed(own_broker, "cooperative"), seconds=90)


@pytest.mark.soak
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("turn", range(5))
def test_a_broker_that_is_killed_often_loses_nothing(
    own_broker: OwnKafka, protocol: str, turn: int
) -> None:
    """As above; with the broker's protocol a member may be lost, and repeat what it had not
    stored.
    """
    run(_killed(own_broker, protocol), seconds=120)


async def _killed(broker: OwnKafka, protocol: str) -> None:
    topic, group = await new_topic(broker, 3), new_name("group")
    for partition in range(3):
        await fill(broker, topic, 1_000, partition=partition)
    down = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.offset >= 500:
            await down.wait()

    given = LASTS if protocol == "cooperative" else {}
    source = source_of(broker, topic, group, protocol=protocol, **given)
    # capacity for all of them: one partition's records may precede those of another
    options = {"ordering": "unordered", "concurrency": 3_000, "in_flight": 3_000}
    async with log_lines() as log, member(source, handle, **options) as reader:
        await reader.handled_count(1_000)
        await asyncio.to_thread(broker.kill)
        down.set()
        await log.wait(f"no broker can be reached at {broker.bootstrap}")
        await asyncio.to_thread(broker.start)
        await reader.news.until(lambda: len({*reader.handled}) == 3_000)
        await log.wait("delivers again")
        for partition in range(3):
            await reader.stored(1_000, partition)
    if protocol == "cooperative":
        assert len(reader.handled) == 3_000
    assert {at.offset for at in (await stored(broker, group)).values()} == {1_000}


def test_a_broker_that_is_down_at_the_start_is_named_and_joined_when_it_is_up(
    broker: EmbeddedKafka,
) -> None:
    """consumer/C:N5, consumer/C:B4: reported once, in plain words."""

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        await fill(broker, topic, 10)
        async with proxied(broker) as proxy:
            proxy.refuse()
            source = source_of(broker, topic, group, bootstrap=proxy.bootstrap)
            trouble = f"{group}: no broker can be reached at {proxy.bootstrap}"
            async with troubled(source, trouble) as (reader, log):  # type: ignore[arg-type]
                await proxy.listen()
                await delivers(reader, log, 10)
                assert sum(trouble in line for line in log.lines(logging.WARNING)) == 1

    run(scenario())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_missing_topic_is_named_and_read_when_it_is_created(
    broker: EmbeddedKafka, protocol: str
) -> None:
    """consumer/C:N5."""

    async def scenario() -> None:
        missing, group = new_name(), new_name("group")
        source = source_of(
            broker,
            missing,
            group,
            protocol=protocol,
            client={"topic.metadata.refresh.interval.ms": 300},
        )
        async with troubled(source, f"the topic '{missing}' does not exist") as (reader, log):  # type: ignore[arg-type]
            await new_topic(broker, name=missing)
            await fill(broker, missing, 10)
            await delivers(reader, log, 10)

    run(scenario())


def test_a_wrong_password_is_named_and_never_shown(
    own_broker: OwnKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """It is neither in the trouble nor in a log or a repr."""
    secret = "Wrong-5678-secret"
    caplog.set_level("INFO")

    async def scenario() -> None:
        topic = await new_topic(own_broker)
        source = source_of(
            own_broker,
            topic,
            new_name("group"),
            bootstrap=KafkaAccess(own_broker.logins, **login(secret)),
        )
        trouble = f"{own_broker.logins} has refused the login"
        async with troubled(source, trouble) as (reader, _):  # type: ignore[arg-type]
            told = (repr(source), repr(reader.consumer), str(reader.consumer.explain()))
            assert not [each for each in told if secret in each]

    run(scenario())
    assert [each for each in caplog.records if each.name.startswith("sluicegate")]
    assert secret not in caplog.text


def test_missing_rights_are_named_and_records_are_read_once_they_are_granted(
    own_broker: OwnKafka,
) -> None:
    """First that of the topic, then that of the group: it queries the topics before it joins."""

    async def scenario() -> None:
        topic, group = await new_topic(own_broker), new_name("group")
        await fill(own_broker, topic, 10)
        source = source_of(
            own_broker, topic, group, bootstrap=KafkaAccess(own_broker.logins, **login())
        )
        async with log_lines() as log, member(source) as reader:
            await log.wait(f"topic '{topic}'")
            assert not reader.consumer.ready
            await grant(own_broker, topic=topic)
            await log.wait(f"not authorized to use the group '{group}'; it needs READ")
            await grant(own_broker, group=group)
            await delivers(reader, log, 10)

    run(scenario())
