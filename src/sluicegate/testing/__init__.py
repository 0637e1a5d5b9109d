"""Tools for testing your own code: a fake clock, scripted sinks, and real embedded servers."""

from .._core.clock import LoopClock
from .._core.public import publish_all
from .clock.clock import FakeClock
from .clock.moment import WouldHang
from .harness.calls import HandlerCall
from .harness.harness import ConsumerHarness
from .harness.mock_context import MockContext
from .harness.ran import HarnessRun
from .load.destination import Destination, LoadedSink
from .load.samples import Sample
from .load.simulation import Scenario, Simulated, simulate
from .scripted import (
    BlockingSink,
    Call,
    DedupSink,
    FakeSink,
    FlakySink,
    ScriptedSink,
    SlowSink,
    Step,
    answer,
    fail,
    hang,
    ignore_cancel,
    ok,
    partial,
    slow,
)
from .servers.kafka import EmbeddedKafka, embedded_kafka
from .servers.nats import EmbeddedNats, embedded_nats
from .servers.opensearch import EmbeddedOpenSearch, embedded_opensearch
from .servers.postgres import EmbeddedPostgres, embedded_postgres
from .servers.require import EmbeddedUnavailable, skip_or_fail

__all__ = [
    "BlockingSink",
    "Call",
    "ConsumerHarness",
    "DedupSink",
    "Destination",
    "EmbeddedKafka",
    "EmbeddedNats",
    "EmbeddedOpenSearch",
    "EmbeddedPostgres",
    "EmbeddedUnavailable",
    "FakeClock",
    "FakeSink",
    "FlakySink",
    "HandlerCall",
    "HarnessRun",
    "LoadedSink",
    "LoopClock",
    "MockContext",
    "Sample",
    "Scenario",
    "ScriptedSink",
    "Simulated",
    "SlowSink",
    "Step",
    "WouldHang",
    "answer",
    "embedded_kafka",
    "embedded_nats",
    "embedded_opensearch",
    "embedded_postgres",
    "fail",
    "hang",
    "ignore_cancel",
    "ok",
    "partial",
    "simulate",
    "skip_or_fail",
    "slow",
]

publish_all(__name__)
