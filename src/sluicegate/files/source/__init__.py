"""Files in NDJSON, CSV and Parquet as a source of consumers.

- `source`, `options`; `subscription`: the open source; `holding`: the files of this process.
- `catalog`: the files of a subscription; `finding`: the files in the folder.
- `readers`, `parquet_rows`: rows by format.
"""

from ..._core.public import publish_all
from ..subscriptions import SQLiteSubscriptions
from .readers import UnreadFiles
from .source import FileSource

__all__ = ["FileSource", "SQLiteSubscriptions", "UnreadFiles"]

publish_all(__name__, "sluicegate.files")
