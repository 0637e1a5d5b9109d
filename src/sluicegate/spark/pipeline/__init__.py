"""Pipelines: declared in a file or in Python, checked as a whole, run on Spark.

A declaration and its check need neither PySpark nor Java; only `run` does.
"""

from ..._core.public import publish_all
from ..report import PipelineReport
from .declaration import (
    Destination,
    Layer,
    PipelineError,
    Source,
    SparkSettings,
    Step,
    Stream,
    Watermark,
    Write,
)
from .pipeline import Pipeline

__all__ = [
    "Destination",
    "Layer",
    "Pipeline",
    "PipelineError",
    "PipelineReport",
    "Source",
    "SparkSettings",
    "Step",
    "Stream",
    "Watermark",
    "Write",
]

publish_all(__name__)
