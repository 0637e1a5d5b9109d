"""Items appended to a file as lines of JSON."""

from ..._clients.files.errors import classify_file
from .sink import FileSink

__all__ = ["FileSink", "classify_file"]
