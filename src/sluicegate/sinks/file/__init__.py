"""Items appended to a file as lines of JSON."""

from ..._clients.files.errors import classify_file
from ..._core.public import publish_all
from .sink import FileSink

__all__ = ["FileSink", "classify_file"]

publish_all(__name__, "sluicegate.sinks")
