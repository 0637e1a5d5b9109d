"""Object stores: batches as objects, and dead letters among them."""

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
