"""Invalid arguments of the Kafka source: an error at construction, and nothing is started."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.kafka.access_help import kafka_args

from sluicegate import ClosedError, ConfigError, Consumer
from sluicegate.kafka import KafkaSource
from sluicegate.testing.conformance.source.subject import RecordingHost

GOOD: dict[str, Any] = {"bootstrap": "127.0.0.1:1", "group": "billing"}
NO_ZONE = datetime(2026, 1, 1)  # this is the error


def made(*topics: Any, **given: Any) -> KafkaSource:
    args = {**GOOD, **given}
    args = kafka_args(KafkaSource, args.pop("bootstrap"), **args)
    return KafkaSource(*(topics or ("orders",)), **args)


@pytest.mark.parametrize(
    ("given", "value", "rule"),
    [
        ("bootstrap", "", '"host:port"'),
        ("bootstrap", "localhost", '"host:port"'),
        ("bootstrap", "localhost:port", '"host:port"'),
        ("bootstrap", ["localhost:9092", 9092], '"host:port"'),
        ("bootstrap", [], '"host:port"'),
        ("bootstrap", None, '"host:port"'),
        ("group", "", "non-empty"),
        ("group", " ", "non-empty"),
        ("group", 7, "must be a non-empty string"),
        ("group", None, "must be a non-empty string"),
        ("instance", "", "non-empty"),
        ("instance", 7, "must be a non-empty string"),
        ("start", "newest", '"earliest", "latest", "committed"'),
        ("start", 0, '"earliest", "latest", "committed"'),
        ("start", NO_ZONE, "with a time zone"),
        *[
            (name, value, "")
            for name in (
                "session_timeout",
                "rebalance_timeout",
                "max_poll_interval",
                "commit_timeout",
                "close_timeout",
            )
            for value in (0, -1.0, "45", float("nan"), float("inf"), True, timedelta(0))
        ],
        ("commit_timeout", 60.0, "must be shorter than rebalance_timeout and max_poll_interval"),
    ],
)
def test_a_bad_argument_is_named_with_its_value_and_the_rule(
    given: str, value: object, rule: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        made(**{given: value})
    shown = "..." if value in ("localhost:port", ["localhost:9092", 9092]) else repr(value)
    assert str(raised.value).startswith(f"{given}={shown}: ") or isinstance(value, timedelta)
    assert given in str(raised.value)
    assert rule in str(raised.value)


@pytest.mark.parametrize("topic", ["", "a b", "orders/0", "ä", "x" * 250, 7, None, b"orders"])
def test_a_bad_topic_is_named(topic: object) -> None:
    with pytest.raises(ConfigError, match="must be a topic name: 1 to 249 letters"):
        made(topic)


@pytest.mark.parametrize("pattern", ["(", 7, b"orders.*"])
def test_a_bad_pattern_is_named(pattern: Any) -> None:
    with pytest.raises(ConfigError, match=r"pattern=.*must be a regular expression"):
        KafkaSource(pattern=pattern, **GOOD)


def test_topics_and_a_pattern_exclude_each_other_and_one_is_needed() -> None:
    for topics, pattern in (((), None), (("orders",), "orders.*")):
        with pytest.raises(ConfigError, match="give the names of topics, or pattern="):
            KafkaSource(*topics, pattern=pattern, **GOOD)


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("bootstrap_servers", "bootstrap=..."),
        ("sasl_plain_password", "use sasl_password=... of KafkaAccess"),
        ("group_id", "group=..."),
        ("group_instance_id", "instance=..."),
        ("auto_offset_reset", "start=..."),
        ("enable_auto_commit", "positions are stored by the consumer"),
        ("auto_commit_interval_ms", "Consumer(commits=Commits(every=...))"),
        ("session_timeout_ms", "use session_timeout=..., in seconds"),
        ("max_poll_interval_ms", "use max_poll_interval=..., in seconds"),
        ("rebalance_timeout_ms", "use rebalance_timeout=..., in seconds"),
        ("heartbeat_interval_ms", "it follows session_timeout"),
        ("max_poll_records", "Consumer(in_flight=InFlight(fetch_max=...))"),
        ("key_deserializer", "Consumer(steps=...)"),
        ("value_deserializer", "Consumer(steps=...)"),
    ],
)
def test_an_option_that_sluicegate_sets_is_refused_with_what_to_use(
    option: str, instead: str
) -> None:
    with pytest.raises(ConfigError, match=f"{option}.*{re.escape(instead)}"):
        made(**{option: "hunter2"})


def test_an_unknown_option_is_refused_and_no_value_is_shown() -> None:
    """The value of a misspelt password option is a password."""
    with pytest.raises(ConfigError, match="sasl_plain_pasword") as raised:
        made(sasl_plain_pasword="hunter2")
    assert "hunter2" not in str(raised.value)


def test_no_repr_shows_a_secret() -> None:
    source = made(sasl_password="hunter2", security_protocol="SASL_PLAINTEXT")
    assert repr(source) == "KafkaSource('orders', bootstrap='127.0.0.1:1', group='billing')"
    source = KafkaSource(pattern="orders.*", **GOOD)
    assert repr(source) == (
        "KafkaSource(pattern='orders.*', bootstrap='127.0.0.1:1', group='billing')"
    )


def test_addresses_are_taken_as_a_list_or_with_commas() -> None:
    for given in ("a:1, b:2", ["a:1", "b:2"], ("a:1", " b:2")):
        assert "bootstrap='a:1,b:2'" in repr(made(bootstrap=given))


def test_milliseconds_for_seconds_are_warned_of() -> None:
    """Kafka's own settings are milliseconds."""
    with pytest.warns(UserWarning, match="session_timeout"):
        made(session_timeout=45_000)


@pytest.mark.parametrize("drain", [55.0, 60.0])
def test_a_drain_that_a_rebalance_does_not_leave_time_for_is_refused(drain: float) -> None:
    """consumer/C:R1: rebalance_timeout minus commit_timeout remains."""
    with pytest.raises(ConfigError, match=f"drain={drain}: must be shorter than the 55 s"):
        Consumer(made(), drain=drain)
    Consumer(made(), drain=54.0)


@pytest.mark.usefixtures("real_clock")
async def test_a_source_that_is_not_open_or_open_already_says_so() -> None:
    source = made()
    calls = (source.fetch([], 1), source.keep_alive(), source.commit({}), source.ends([]))
    for call in calls:
        with pytest.raises(ClosedError, match=r"KafkaSource\('orders'.*is not open"):
            await call
    async with source.open(RecordingHost()):
        with pytest.raises(ConfigError, match="is already open"):
            async with source.open(RecordingHost()):
                pass
