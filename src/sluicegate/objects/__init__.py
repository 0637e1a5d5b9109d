"""Object stores: a batch becomes an object; dead letters can be stored there too.

Provisional: its public names may change in a minor release.

- `sink`: the base of both sinks, and JSON lines; `parquet`, and `tables`: rows in Parquet.
- `partitions`: folders named after item values; `store`: uploads and the objects below a URL.
- `letters`: dead letters; `errors`: error classes.
"""

from typing import TYPE_CHECKING

from .._core.public import later

if TYPE_CHECKING:
    from .parquet import ParquetSink
    from .sink import ObjectSink
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "parquet": ["ParquetSink"],
            "sink": ["ObjectSink"],
        },
    )

__all__ = [
    "ObjectSink",
    "ParquetSink",
]
