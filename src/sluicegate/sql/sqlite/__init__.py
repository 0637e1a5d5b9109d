"""Effects of handlers in an SQLite file."""

from ..._core.public import publish_all
from .effects import SQLiteEffects

__all__ = ["SQLiteEffects"]

publish_all(__name__, "sluicegate.sql")
