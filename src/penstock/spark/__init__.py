"""Writing Spark DataFrames and streams to sinks."""

from .._core.errors import MissingExtra
from .._core.public import publish, publish_all
from .pipeline import Pipeline, PipelineError, PipelineReport

__all__ = [
    "DeadLettersError",
    "DeadRow",
    "ForeachBatch",
    "Pipeline",
    "PipelineError",
    "PipelineReport",
    "Registration",
    "SparkWriteReport",
    "StreamReport",
    "UnitReport",
    "connector_jars",
    "foreach_batch",
    "keyed",
    "register",
    "write_dataframe",
]

try:
    from .driver.keys import keyed
    from .jars import connector_jars
    from .progress.counts import DeadLettersError, DeadRow, UnitReport
    from .registration import Registration, register
    from .report import SparkWriteReport, StreamReport
    from .streaming import ForeachBatch, foreach_batch
    from .write import write_dataframe
except ModuleNotFoundError as error:
    _missing = (error.name or "").partition(".")[0]
    if _missing not in {"numpy", "pyarrow", "pyspark"}:
        raise

    def __getattr__(name: str) -> object:
        """Raise `MissingExtra`: without Spark, only pipelines can be declared and checked."""
        if name not in __all__:
            raise AttributeError(name)
        message = f'penstock.spark needs the package {_missing}: pip install "penstock[spark]"'
        raise MissingExtra(message)


publish(__name__, Pipeline, PipelineError, PipelineReport)
publish_all(__name__)
