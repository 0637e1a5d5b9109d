"""Files: lines appended to one, and files of a folder as a source.

Provisional: its public names may change in a minor release.

- `sink`, and `append`: the file that it writes; `repair`: the end of a file after a crash.
- `source`: the source.
- `letters`: dead letters.
"""

from typing import TYPE_CHECKING

from .._core.public import later

if TYPE_CHECKING:
    from .sink import FileSink
    from .source import FileSource, UnreadFiles
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "sink": ["FileSink"],
            "source": ["FileSource", "UnreadFiles"],
        },
    )

__all__ = [
    "FileSink",
    "FileSource",
    "UnreadFiles",
]
