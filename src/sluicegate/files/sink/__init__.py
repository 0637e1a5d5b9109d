"""Items appended to a file as lines of JSON."""

from ..._core.public import publish_all
from ..client.errors import classify_file
from .sink import FileSink

__all__ = ["FileSink", "classify_file"]

publish_all(__name__, "sluicegate.files")
