"""Rows to tables of SQL databases, through SQLAlchemy."""

from ..._core.public import publish
from .errors import classify_sql
from .sink import SqlSink

__all__ = ["SqlSink", "classify_sql"]

publish("penstock.sinks", *(globals()[name] for name in __all__))
