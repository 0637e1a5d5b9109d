"""Pipelines: declared in a file or in Python, checked as a whole, run on Spark.

- `pipeline`; `declaration`: its parts as dataclasses; `reading`: the file.
- `check`, `sinks`: the checks, and the sinks of a declaration. They need neither PySpark nor Java.
- `run`, `increments`: a checked pipeline on Spark; the new rows of its incremental sources.
"""

from ..._core.public import publish_all
from .declaration import (
    Destination,
    Incremental,
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
    "Incremental",
    "Layer",
    "Source",
    "SparkSettings",
    "Step",
    "Stream",
    "Watermark",
    "Write",
]

publish_all(__name__)
