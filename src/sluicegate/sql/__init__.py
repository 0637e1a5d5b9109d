"""Rows to tables of SQL databases, through SQLAlchemy."""

from typing import TYPE_CHECKING

from .._core.public import later, publish_all
from .sink import SqlSink

if TYPE_CHECKING:
    from .effects import SQLiteEffects
else:
    __getattr__, __dir__ = later(__name__, {"effects": ["SQLiteEffects"]})

__all__ = ["SQLiteEffects", "SqlSink"]

publish_all(__name__, "sluicegate.sql")
