"""The page of time limits says what the arguments are."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from penstock import sinks
from penstock.sources.jetstream import JetStreamSource
from penstock.sources.kafka import KafkaSource
from penstock.sources.kafka_confluent import ConfluentKafkaSource

PAGE = Path(__file__).parents[2] / "docs/reference/time-limits.md"
SOURCES = {each.__name__: each for each in (JetStreamSource, KafkaSource, ConfluentKafkaSource)}
ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| `(\w+)` \| ([\d.]+) \|$", re.MULTILINE)


def test_every_default_of_the_page_is_that_of_the_argument() -> None:
    rows = ROW.findall(PAGE.read_text())
    assert len(rows) > 10
    for name, argument, default in rows:
        made = SOURCES.get(name) or getattr(sinks, name)
        parameter = inspect.signature(made).parameters[argument]
        assert parameter.default == float(default), (name, argument)
