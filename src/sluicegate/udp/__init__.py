"""Metrics over UDP, to statsd, DogStatsD and Telegraf.

Provisional: its public names may change in a minor release.

- `sink`; `records`: items as lines; `channel`: the socket.
"""

from .._core.public import publish_all
from .sink import UdpSink

__all__ = ["UdpSink"]

publish_all(__name__, "sluicegate.udp")
