"""Items appended to a file as lines of JSON."""

from ..._clients.files.errors import classify_file
from ..._core.public import publish
from .sink import FileSink

__all__ = ["FileSink", "classify_file"]

publish("penstock.sinks", *(globals()[name] for name in __all__))
