"""Rows to tables of SQL databases, through SQLAlchemy."""

from ..._core.public import publish_all
from .errors import classify_sql
from .sink import SqlSink

__all__ = ["SqlSink", "classify_sql"]

publish_all(__name__, "sluicegate.sinks")
