"""Files in NDJSON, CSV and Parquet as a source of consumers.

- `source`, `options`; `reading`: the open source.
- `state`: the files of a subscription and their positions; `finding`: the files in the folder.
- `readers`, `parquet_rows`: rows by format.
"""

from ..._core.public import publish_all
from .readers import UnreadFiles
from .source import FileSource

__all__ = ["FileSource", "UnreadFiles"]

publish_all(__name__, "sluicegate.files")
