"""Streams in PostgreSQL.

Append messages in your own transactions, read and delete them, and operate subscriptions.

`log` and `sink` append; `reader`, `reading` and `log_reader` read. `source` consumes: `slots`,
`holding` and `balancing` share a subscription among processes, `serving` is the open source.
`admin`, `queries`, `retention`, `stats` and `monitor` are for operators.
"""

from ..._core.public import publish_all
from ..records.monitor import StreamObserver
from ..schema.administration import check_streams, install_streams, upgrade_streams
from .admin import SubscriptionAdmin
from .log import StreamLog, StreamNotifier
from .message import NO_STREAM, NewMessage, UndecodableMessage
from .monitor import StreamMonitor
from .reader import StreamReader, SyncStreamReader
from .retention import StreamRetention
from .sink import PostgresStreamSink
from .source import PostgresStreamSource

__all__ = [
    "NO_STREAM",
    "NewMessage",
    "PostgresStreamSink",
    "PostgresStreamSource",
    "StreamLog",
    "StreamMonitor",
    "StreamNotifier",
    "StreamObserver",
    "StreamReader",
    "StreamRetention",
    "SubscriptionAdmin",
    "SyncStreamReader",
    "UndecodableMessage",
    "check_streams",
    "install_streams",
    "upgrade_streams",
]

publish_all(__name__, "sluicegate.postgres")
