"""Pipelines: declared in a file or in Python, checked as a whole, run on Spark.

A declaration and its check need neither PySpark nor Java; only `run` does.
"""

from ..._core.public import publish_all
from .declaration import (
    Destination,
    Layer,
    Source,
    SparkSettings,
    Step,
    Stream,
    Watermark,
    Write,
)

__all__ = [
    "Destination",
    "Layer",
    "Source",
    "SparkSettings",
    "Step",
    "Stream",
    "Watermark",
    "Write",
]

publish_all(__name__)
