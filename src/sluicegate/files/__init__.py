"""Files: lines appended to one, and files of a folder as a source."""

from typing import TYPE_CHECKING

from .._core.public import later

if TYPE_CHECKING:
    from .sink import FileSink
    from .source import FileSource, SQLiteSubscriptions, UnreadFiles
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "sink": ["FileSink"],
            "source": ["FileSource", "SQLiteSubscriptions", "UnreadFiles"],
        },
    )

__all__ = [
    "FileSink",
    "FileSource",
    "SQLiteSubscriptions",
    "UnreadFiles",
]
