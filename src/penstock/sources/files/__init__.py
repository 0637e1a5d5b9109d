"""Files in NDJSON, CSV and Parquet as a source of consumers."""

from ..._core.public import publish
from .errors import UnreadFiles
from .source import FileSource

__all__ = ["FileSource", "UnreadFiles"]

publish(__name__, FileSource, UnreadFiles)
