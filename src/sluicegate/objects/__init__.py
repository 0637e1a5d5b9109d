"""Object stores: batches as objects, and dead letters among them."""

from typing import TYPE_CHECKING

from .._core.public import later

if TYPE_CHECKING:
    from .sink import ObjectOptions, ObjectSink, ParquetSink, StoredObject
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "sink": ["ObjectOptions", "ObjectSink", "ParquetSink", "StoredObject"],
        },
    )

__all__ = [
    "ObjectOptions",
    "ObjectSink",
    "ParquetSink",
    "StoredObject",
]
