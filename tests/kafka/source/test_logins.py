"""Logins and permissions: a refusal is named without secrets, and reading begins once it is
granted.

White box: the source looks at its brokers more often.
"""

from __future__ import annotations

import pytest
from tests.kafka.source.kafka_help import fill, new_name, new_topic
from tests.kafka.source.own_help import OwnKafka, grant, login
from tests.kafka.source.storm_help import QUICK, log_lines, member, run
from tests.kafka.source.test_troubles import delivers, troubled

from sluicegate.kafka import KafkaAccess, KafkaSource
from sluicegate.kafka.source import sessions


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check for missing topics more often than every five seconds."""
    monkeypatch.setattr(sessions, "REFRESH_EVERY", 0.2)


def test_a_wrong_password_is_named_and_never_shown(
    own_broker: OwnKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the user name nor the password is in the trouble, a log or a repr."""
    secret = "Wrong-5678-secret"
    caplog.set_level("INFO")

    async def scenario() -> None:
        topic = await new_topic(own_broker)
        source = KafkaSource(
            topic,
            bootstrap=KafkaAccess(own_broker.logins, **login(secret)),
            group=new_name("group"),
        )
        trouble = f"{own_broker.logins} has refused the login"
        async with troubled(source, trouble) as (reader, _):
            told = (repr(source), repr(reader.consumer), str(reader.consumer.explain()))
            assert not [each for each in told if secret in each]

    run(scenario())
    ours = [each for each in caplog.records if each.name.startswith("sluicegate")]
    assert ours
    assert secret not in "".join(each.getMessage() + str(each.exc_text) for each in ours)
    assert secret not in caplog.text


@pytest.mark.soak
def test_missing_rights_are_named_and_records_are_read_once_they_are_granted(
    own_broker: OwnKafka,
) -> None:
    """First that of the group, then that of the topic."""

    async def scenario() -> None:
        topic, group = await new_topic(own_broker), new_name("group")
        await fill(own_broker, topic, 10)
        source = KafkaSource(
            topic, bootstrap=KafkaAccess(own_broker.logins, **login()), group=group, **QUICK
        )
        async with log_lines() as log, member(source) as reader:
            await log.wait(f"not authorized to use the group '{group}'; it needs READ")
            assert not reader.consumer.ready
            await grant(own_broker, group=group)
            await log.wait(f"topic '{topic}'")
            await grant(own_broker, topic=topic)
            await delivers(reader, log, 10)

    run(scenario())
