"""Tools for testing your own code: a fake clock, scripted sinks, and real embedded servers.

- `clock`, `virtual_loop`, `on_clock`: time under the control of a test, its loop, and async tests.
- `scripted`: sinks; `harness`, `mock_context`: handlers with and without a consumer.
- `conformance`: suites for your own parts.
- `servers`: embedded servers; `plugin`: the pytest fixtures.
"""

from typing import TYPE_CHECKING

from .._core.public import later, publish_all
from .clock import FakeClock
from .harness import ConsumerHarness
from .mock_context import MockContext
from .scripted import (
    BlockingSink,
    FakeSink,
    FlakySink,
    ScriptedSink,
    SlowSink,
    answer,
    fail,
    hang,
    ignore_cancel,
    ok,
    partial,
    slow,
)
from .servers.require import EmbeddedUnavailable
from .virtual_loop import WouldHang

if TYPE_CHECKING:
    from ..http.elasticsearch.server import EmbeddedOpenSearch, embedded_opensearch
    from ..kafka.server import EmbeddedKafka, embedded_kafka
    from ..kafka.values.server import EmbeddedRegistry, embedded_registry
    from ..nats.server import EmbeddedNats, embedded_nats
    from ..postgres.server import EmbeddedPostgres, embedded_postgres
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            ".http.elasticsearch.server": ["EmbeddedOpenSearch", "embedded_opensearch"],
            ".kafka.server": ["EmbeddedKafka", "embedded_kafka"],
            ".kafka.values.server": ["EmbeddedRegistry", "embedded_registry"],
            ".nats.server": ["EmbeddedNats", "embedded_nats"],
            ".postgres.server": ["EmbeddedPostgres", "embedded_postgres"],
        },
    )

__all__ = [
    "BlockingSink",
    "ConsumerHarness",
    "EmbeddedKafka",
    "EmbeddedNats",
    "EmbeddedOpenSearch",
    "EmbeddedPostgres",
    "EmbeddedRegistry",
    "EmbeddedUnavailable",
    "FakeClock",
    "FakeSink",
    "FlakySink",
    "MockContext",
    "ScriptedSink",
    "SlowSink",
    "WouldHang",
    "answer",
    "embedded_kafka",
    "embedded_nats",
    "embedded_opensearch",
    "embedded_postgres",
    "embedded_registry",
    "fail",
    "hang",
    "ignore_cancel",
    "ok",
    "partial",
    "slow",
]

publish_all(__name__)
