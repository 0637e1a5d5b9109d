"""Test your own code as Penstock tests itself: a fake clock, scripted sinks, real servers that
start from packages.
"""

from .._core.clock import LoopClock
from .._core.public import publish
from ._clock import FakeClock
from ._kafka import EmbeddedKafka, embedded_kafka
from ._load import Destination, LoadedSink, Sample, Scenario, Simulated, simulate
from ._moment import WouldHang
from ._opensearch import EmbeddedOpenSearch, embedded_opensearch
from ._postgres import EmbeddedPostgres, embedded_postgres
from ._require import EmbeddedUnavailable, skip_or_fail
from ._sinks import (
    BlockingSink,
    Call,
    DedupSink,
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

__all__ = [
    "BlockingSink",
    "Call",
    "DedupSink",
    "Destination",
    "EmbeddedKafka",
    "EmbeddedOpenSearch",
    "EmbeddedPostgres",
    "EmbeddedUnavailable",
    "FakeClock",
    "FakeSink",
    "FlakySink",
    "LoadedSink",
    "LoopClock",
    "Sample",
    "Scenario",
    "ScriptedSink",
    "Simulated",
    "SlowSink",
    "WouldHang",
    "answer",
    "embedded_kafka",
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

publish(__name__, *(globals()[name] for name in __all__ if name != "LoopClock"))
