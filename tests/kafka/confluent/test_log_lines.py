"""The log lines of librdkafka while a broker is down. White box: one line per cause and interval."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer

from sluicegate.kafka.confluent.errors import EVERY, LOGGER, OncePerCause

if TYPE_CHECKING:
    import pytest


def test_an_unreachable_broker_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A client without a broker logs each attempt of each of its connections; one line is enough."""
    given = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "reconnect.backoff.max.ms": 100}
    plain = logging.getLogger("plain")
    clients = [Consumer(given, logger=log) for log in (plain, LOGGER, LOGGER)]
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        for client in clients:
            client.subscribe(["t"])
            client.poll(0.05)
    for client in clients:
        client.close()
    raw = [each for each in caplog.records if each.name == "plain"]
    lines = [each.getMessage() for each in caplog.records if each.name == "librdkafka"]
    assert len(raw) > 2
    assert sum("Connection refused" in each for each in lines) <= 1
    once = OncePerCause()
    first = [each for each in raw if once.filter(each)]
    assert len(first) < len(raw)
    for each in first:
        each.created += EVERY + 1
    assert [once.filter(each) for each in first] == [True] * len(first)


def test_lines_with_another_cause_are_kept() -> None:
    def record(text: str, created: float = 0.0) -> logging.LogRecord:
        made = logging.LogRecord("librdkafka", logging.ERROR, "", 0, "FAIL %s", (text,), None)
        made.created = created
        return made

    once = OncePerCause()
    down = "[rdkafka#consumer-%d] [thrd:b%d:9092/%d]: b%d:9092/%d: refused (after %dms)"
    assert once.filter(record(down % (1, 1, 1, 1, 1, 5)))
    assert not once.filter(record(down % (2, 1, 1, 1, 1, 7), 10))
    assert once.filter(record(down % (1, 2, 2, 2, 2, 5), 10))
    assert once.filter(record(down % (1, 1, 1, 1, 1, 5), EVERY))
    assert once.filter(record(down % (1, 1, 1, 1, 1, 5), -1000))  # the clock was set back
