"""Files in NDJSON, CSV and Parquet as a source of consumers."""

from ..._core.public import publish_all
from ..subscriptions import SQLiteSubscriptions
from .readers import UnreadFiles
from .source import FileSource

__all__ = ["FileSource", "SQLiteSubscriptions", "UnreadFiles"]

publish_all(__name__, "sluicegate.files")
