"""Metrics over UDP, to statsd, DogStatsD, Telegraf and InfluxDB.

Provisional: its public names may change in a minor release.

- `sink`; `records`: items as lines; `channel`: the endpoint.
"""

from .._core.public import publish_all
from .sink import UdpSink

__all__ = ["UdpSink"]

publish_all(__name__, "sluicegate.udp")
