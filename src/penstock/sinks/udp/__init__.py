"""Metrics over UDP, to statsd, DogStatsD, Telegraf and InfluxDB."""

from ..._core.public import publish
from .sink import UdpSink

__all__ = ["UdpSink"]

publish("penstock.sinks", *(globals()[name] for name in __all__))
