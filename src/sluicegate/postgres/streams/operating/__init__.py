"""Streams in PostgreSQL.

Append messages in your own transactions, read and delete them, and operate subscriptions. The same
schema also has a store for parked records.
"""

from ...._core.public import publish_all
from ...monitoring.stream_observer import StreamObserver
from ...schema.administration import check_streams, install_streams, upgrade_streams
from ...schema.problems import SchemaProblem
from ..messages.appender import OpenAppender
from ..messages.message import NO_STREAM, Appended, NewMessage
from ..messages.notifier import StreamNotifier
from ..messages.stored import StoredMessage, UndecodableMessage
from ..sink.sink import PostgresStreamSink
from ..source.source import PostgresStreamSource
from .admin import SkippedMessage, SubscriptionAdmin
from .log import StreamLog
from .log_stats import (
    Backlog,
    HorizonStats,
    LogFigures,
    LogStats,
    SubscriptionStats,
    TableStats,
)
from .monitor import StreamMonitor
from .parked import PostgresParkStore
from .reader import StreamReader, SyncStreamReader
from .retention import Deleted, StreamRetention
from .slot_stats import SlotStats, SubscriptionReport

__all__ = [
    "NO_STREAM",
    "Appended",
    "Backlog",
    "Deleted",
    "HorizonStats",
    "LogFigures",
    "LogStats",
    "NewMessage",
    "OpenAppender",
    "PostgresParkStore",
    "PostgresStreamSink",
    "PostgresStreamSource",
    "SchemaProblem",
    "SkippedMessage",
    "SlotStats",
    "StoredMessage",
    "StreamLog",
    "StreamMonitor",
    "StreamNotifier",
    "StreamObserver",
    "StreamReader",
    "StreamRetention",
    "SubscriptionAdmin",
    "SubscriptionReport",
    "SubscriptionStats",
    "SyncStreamReader",
    "TableStats",
    "UndecodableMessage",
    "check_streams",
    "install_streams",
    "upgrade_streams",
]

publish_all(__name__, "sluicegate.postgres")
