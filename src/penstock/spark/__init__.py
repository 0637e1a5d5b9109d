"""Sinks as writers of Spark."""

from .._core.errors import MissingExtra
from .._core.public import publish

try:
    from ._driver import keyed
    from ._jars import connector_jars
    from .report import DeadLettersError, DeadRow, SparkWriteReport, UnitReport
    from .streaming import foreach_batch
    from .write import write_dataframe
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in {"numpy", "pyarrow", "pyspark"}:
        raise
    message = f'penstock.spark needs the package {error.name}: pip install "penstock[spark]"'
    raise MissingExtra(message) from error

__all__ = ["DeadLettersError", "DeadRow", "SparkWriteReport", "UnitReport", "connector_jars", "foreach_batch", "keyed", "write_dataframe"]

publish(__name__, *(globals()[name] for name in __all__))
