"""Invalid arguments of the source on librdkafka: an error that names them without secrets."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.kafka.access_help import kafka_args

from sluicegate import ClosedError, ConfigError, Consumer
from sluicegate.kafka import ConfluentKafkaSource
from sluicegate.testing.conformance.source.subject import RecordingHost

GOOD: dict[str, Any] = {"bootstrap": "127.0.0.1:1", "group": "billing"}
SECRET = "hunter2-secret"


def made(**given: Any) -> ConfluentKafkaSource:
    args = {**GOOD, **given}
    if "client" not in args:
        args = kafka_args(ConfluentKafkaSource, args.pop("bootstrap"), **args)
    return ConfluentKafkaSource("orders", **args)


@pytest.mark.parametrize(
    ("given", "value", "rule"),
    [
        ("bootstrap", "localhost", '"host:port"'),
        ("group", " ", "non-empty"),
        ("instance", "", "non-empty"),
        ("protocol", "eager", "'cooperative', 'consumer'"),
        ("start", "newest", '"earliest", "latest", "committed"'),
        ("session_timeout", -1.0, "more than 0"),
        ("rebalance_timeout", 0, "more than 0"),
        ("rebalance_timeout", 10.0, "at least session_timeout"),
        ("commit_timeout", 60.0, "must be shorter than rebalance_timeout"),
        ("close_timeout", "5", "more than 0"),
    ],
)
def test_a_bad_argument_is_named_with_its_value_and_the_rule(
    given: str, value: object, rule: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{given}={value!r}: ")) as raised:
        made(**{given: value})
    assert rule in str(raised.value)


def test_the_brokers_protocol_has_the_brokers_session_timeout() -> None:
    with pytest.raises(ConfigError, match=r"session_timeout=30.*a setting of the broker"):
        made(protocol="consumer", session_timeout=30.0)
    assert made(protocol="consumer").capabilities.revoke_within == 55.0


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("enable.auto.commit", "positions are stored by the consumer"),
        ("enable.auto.offset.store", "positions are stored by the consumer"),
        ("auto.offset.reset", "start=..."),
        ("bootstrap.servers", "bootstrap=..."),
        ("sasl.password", "use sasl_password=... of KafkaAccess"),
        ("ssl.ca.location", "use ssl_cafile=... of KafkaAccess"),
        ("group.id", "group=..."),
        ("group.instance.id", "instance=..."),
        ("group.protocol", "protocol=..."),
        ("partition.assignment.strategy", "protocol=..."),
        ("session.timeout.ms", "use session_timeout=..., in seconds"),
        ("max.poll.interval.ms", "use rebalance_timeout=..., in seconds"),
        ("enable.partition.eof", "detect the end of a partition"),
        ("error_cb", "explain()"),
    ],
)
def test_an_option_that_sluicegate_sets_is_refused_with_what_to_use(
    option: str, instead: str
) -> None:
    with pytest.raises(ConfigError, match=f"{option}.*{re.escape(instead)}") as raised:
        made(client={option: SECRET})
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("client", [SECRET, [SECRET], {1: SECRET}])
def test_options_are_a_mapping_of_names(client: Any) -> None:
    with pytest.raises(ConfigError, match=r"client=.*must be a mapping") as raised:
        made(client=client)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"client": {"sasl.pasword": SECRET}}, "sasl.pasword"),
        ({"sasl_mechanism": SECRET, "security_protocol": "SASL_PLAINTEXT"}, "librdkafka refuses"),
    ],
)
@pytest.mark.usefixtures("real_clock")
async def test_what_librdkafka_refuses_is_named_when_it_is_opened_without_its_value(
    given: dict[str, Any], named: str
) -> None:
    """The value of a misspelt password option is a password."""
    source = made(**given)
    with pytest.raises(ConfigError, match=named) as raised:
        async with source.open(RecordingHost()):
            pass
    assert SECRET not in str(raised.value)
    assert raised.value.__suppress_context__
    with pytest.raises(ClosedError):
        await source.ends([])


def test_no_repr_shows_a_secret() -> None:
    source = made(security_protocol="SASL_SSL", sasl_password=SECRET, ssl_password=SECRET)
    told = "ConfluentKafkaSource('orders', bootstrap='127.0.0.1:1', group='billing')"
    assert repr(source) == told
    assert SECRET not in repr(source._options) + repr(source._options.client)


@pytest.mark.parametrize("drain", [55.0, 60.0])
def test_a_drain_that_a_rebalance_does_not_leave_time_for_is_refused(drain: float) -> None:
    """consumer/C:R1: rebalance_timeout minus commit_timeout remains."""
    with pytest.raises(ConfigError, match=f"drain={drain}: must be shorter than the 55 s"):
        Consumer(made(), drain=drain)
    Consumer(made(), drain=54.0)


@pytest.mark.usefixtures("real_clock")
async def test_a_source_that_is_not_open_or_open_already_says_so() -> None:
    source = made(close_timeout=1.0)
    calls = (source.fetch([], 1), source.commit({}), source.ends([]))
    for call in calls:
        with pytest.raises(ClosedError, match=r"ConfluentKafkaSource\('orders'.*is not open"):
            await call
    async with source.open(RecordingHost()):
        with pytest.raises(ConfigError, match="is already open"):
            async with source.open(RecordingHost()):
                pass
