"""Streams in PostgreSQL: append messages in transactions of your own."""

from .._clients.postgres.streams.message import NO_STREAM, Appended, NewMessage
from .._core.public import publish
from .log import StreamLog

__all__ = ["NO_STREAM", "Appended", "NewMessage", "StreamLog"]

publish(__name__, Appended, NewMessage, StreamLog)
