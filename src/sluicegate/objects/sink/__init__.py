"""Batches as objects in an object store: JSON lines or Parquet."""

from ..._core.public import publish_all
from .base import ObjectOptions, StoredObject
from .parquet import ParquetSink
from .sink import ObjectSink

__all__ = ["ObjectOptions", "ObjectSink", "ParquetSink", "StoredObject"]

publish_all(__name__, "sluicegate.objects")
