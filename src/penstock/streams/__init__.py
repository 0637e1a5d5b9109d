"""Streams in PostgreSQL: append messages in transactions of your own, read them and delete them."""

from .._clients.postgres.schema.administration import (
    check_streams,
    install_streams,
    upgrade_streams,
)
from .._clients.postgres.schema.problems import SchemaProblem
from .._clients.postgres.streams.message import NO_STREAM, Appended, NewMessage
from .._clients.postgres.streams.notifier import StreamNotifier
from .._clients.postgres.streams.stored import StoredMessage
from .._core.public import publish
from .log import StreamLog
from .reader import StreamReader, SyncStreamReader
from .retention import Deleted, StreamRetention

__all__ = [
    "NO_STREAM",
    "Appended",
    "Deleted",
    "NewMessage",
    "SchemaProblem",
    "StoredMessage",
    "StreamLog",
    "StreamNotifier",
    "StreamReader",
    "StreamRetention",
    "SyncStreamReader",
    "check_streams",
    "install_streams",
    "upgrade_streams",
]

publish(__name__, *(globals()[name] for name in __all__ if name != "NO_STREAM"))
