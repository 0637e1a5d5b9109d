"""Java for programs that run Spark: whether it is there, jars of connectors, running jobs.

Jars that PySpark does not include are listed individually in Sluicegate's own poms, without their
dependencies, which PySpark includes. They fit the PySpark for which they were chosen, and newer
ones that were tested: Spark keeps the interface of its connectors across minor versions.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .._core import cache, checks
from .._core.extras import need

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Connector = Literal["kafka", "postgresql"]
POMS = Path(__file__).parent / "_poms"
_OLDEST = {"kafka": (4, 2), "postgresql": (3, 5)}
"""The PySpark version for which the jars were chosen. Older ones have another Kafka connector, and
some use another Scala version.
"""


def connector_jars(*connectors: Connector) -> str:
    """Return the jars of these connectors for the setting `spark.jars`: comma-separated files.

    A session reads the setting at its creation: `SparkSession.builder.config("spark.jars",
    connector_jars("kafka"))`. The first call blocks while Maven downloads the jars; they are kept
    in the user's cache folder.

    Args:
        connectors: `"kafka"` for `format("kafka")`, to read and to write (Spark's own connector, 10
            MB); `"postgresql"` for `format("jdbc")` on PostgreSQL (1 MB). Sluicegate's own sinks
            need neither.

    Raises:
        ConfigError: an unknown connector, or one that does not fit the installed PySpark.
        MissingJars: Maven is missing, or cannot download the jars; the message says why.
    """
    for connector in connectors:
        _check_connector(connector)
    folders = [cache.fetch(POMS / f"spark-{connector}.xml") for connector in connectors]
    return ",".join(str(jar) for folder in folders for jar in sorted(folder.iterdir()))


def _check_connector(connector: str) -> None:
    need("pyspark", "spark", "sluicegate.spark.connector_jars")
    from pyspark import __version__ as installed

    if connector not in _OLDEST:
        raise checks.bad("connectors", connector, f"must be among {', '.join(_OLDEST)}")
    oldest = _OLDEST[connector]
    if tuple(int(number) for number in installed.split(".")[:2]) < oldest:
        rule = (
            f"is for PySpark {'.'.join(map(str, oldest))} and newer, and {installed} "
            "is installed; set the jars for that version in spark.jars.packages"
        )
        raise checks.bad("connectors", connector, rule)


def is_submitted() -> bool:
    """Return whether `spark-submit` runs this program, with a Java that is already configured."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def setting(name: str, given: SparkSession | None = None) -> str | None:
    """Return a setting of this session, of the active one, or of `spark-submit`; `None` without any."""
    if find_spec("pyspark") is None:
        return None
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    active = given or SparkSession.getActiveSession()
    if active is not None:
        return active.conf.get(name, None)
    found: str | None = SparkConf().get(name) if is_submitted() else None
    return found


def has_java() -> bool:
    """Return whether Spark can find Java."""
    home = os.environ.get("JAVA_HOME")
    return (
        is_submitted()
        or shutil.which("java") is not None
        or (home is not None and shutil.which("java", path=Path(home) / "bin") is not None)
    )


def cancel() -> None:
    """Cancel all jobs of the active Spark context, if there is one that is not being stopped."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    running: Any = vars(SparkContext)["_active_spark_context"]  # public functions create one
    if running is not None:
        with suppress(Py4JError, AttributeError):  # a stopped context has no jobs, then no JVM
            running.cancelAllJobs()
