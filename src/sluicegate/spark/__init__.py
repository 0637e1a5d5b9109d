"""Writing Spark DataFrames and streams to sinks.

Provisional: its public names may change in a minor release.

- `write`: a DataFrame or a stream; `levels`: its delivery level; `source`, `registration` and
  `options`: a sink as a Spark format; `report`.
- `description`: a sink on its way to the executors; `destination`: the rows that it accepts;
  `task`: the write of one partition there.
- `keys`, `latest`, `content`, `values`: the rows: their order per key, the last of each key, their
  hash, their types. `avro`: functions of SQL for values with a schema registry.
- `debezium`: events of Debezium as rows.
- `listener`, `metrics`: the progress of streaming queries for Prometheus.
- `pipeline` and its command, `commands`; `java`: Java and the jars of connectors.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from .._core.extras import missing
from .._core.public import later, publish, publish_all
from .pipeline.declaration import PipelineError
from .report import DeadLettersError, PipelineReport, SparkWriteReport

if TYPE_CHECKING:
    from .listener import PrometheusQueryListener
    from .pipeline.pipeline import Pipeline
else:  # not needed by workers, each of which imports this package
    __getattr__, __dir__ = later(
        __name__,
        {"listener": ["PrometheusQueryListener"], "pipeline.pipeline": ["Pipeline"]},
    )

__all__ = [
    "DeadLettersError",
    "Pipeline",
    "PipelineError",
    "PipelineReport",
    "PrometheusQueryListener",
    "Registration",
    "SparkWriteReport",
    "connector_jars",
    "debezium_changes",
    "foreach_batch",
    "keyed",
    "register",
    "register_avro",
    "write_dataframe",
]

_NEEDED = ("pyspark", "pyarrow", "numpy")

try:
    from .avro import register_avro
    from .debezium import debezium_changes
    from .java import connector_jars
    from .keys import keyed
    from .registration import Registration, register
    from .write import foreach_batch, write_dataframe
except ModuleNotFoundError as error:
    _found = (error.name or "").partition(".")[0]
    if _found not in _NEEDED:
        raise
    _module = next((name for name in _NEEDED if find_spec(name) is None), _found)

    def _stand_in(name: str) -> type:
        """Return a class that raises `MissingExtra` when it is called.

        Without Spark, pipelines can be declared and checked, and the names can be imported.
        """

        def refuse(*_: object, **__: object) -> None:
            raise missing(_module, "spark", f"sluicegate.spark.{name}")

        return type(name, (), {"__init__": refuse, "__module__": __name__})

    globals().update(
        {name: _stand_in(name) for name in __all__ if name not in {*globals(), "Pipeline"}}
    )

publish(__name__, PipelineError, PipelineReport)
publish_all(__name__)
