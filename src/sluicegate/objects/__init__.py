"""Object stores: batches as objects, and dead letters among them."""

from typing import TYPE_CHECKING

from .._core.public import later

if TYPE_CHECKING:
    from .parquet import ParquetSink
    from .sink import ObjectOptions, ObjectSink, StoredObject
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "parquet": ["ParquetSink"],
            "sink": ["ObjectOptions", "ObjectSink", "StoredObject"],
        },
    )

__all__ = [
    "ObjectOptions",
    "ObjectSink",
    "ParquetSink",
    "StoredObject",
]
