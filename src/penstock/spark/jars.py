"""Jars that Spark needs for a source and that PySpark comes without.

They are named one by one in a pom of ours, without what their own poms ask for: the rest is
PySpark's. So they fit the PySpark for which they were chosen, and newer ones as far as tried: Spark
keeps the interface of its connectors over minor versions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pyspark import __version__ as installed

from .. import _maven
from .._core import checks

Connector = Literal["kafka", "postgresql"]

POMS = Path(__file__).parent / "_poms"
_OLDEST = {"kafka": (4, 2), "postgresql": (3, 5)}
"""The PySpark for which the jars were chosen. Older ones have another Kafka connector, and some
another Scala.
"""


def connector_jars(*connectors: Connector) -> str:
    """The jars of these connectors, as the setting `spark.jars` takes them: files with a comma
    between them.

    A session takes the setting when it is made: `SparkSession.builder.config("spark.jars",
    connector_jars("kafka"))`. Blocks while Maven fetches the jars, the first time; they are kept in
    the user's cache folder.

    Args:
        connectors: `"kafka"` for `format("kafka")`, to read and to write (Spark's own connector, 10
            MB); `"postgresql"` for `format("jdbc")` on PostgreSQL (1 MB). Penstock's own sinks need
            neither.

    Raises:
        ConfigError: no such connector, or one that does not fit the PySpark that is installed.
        MissingJars: there is no Maven, or it cannot get the jars; the message says why.
    """
    for connector in connectors:
        _check(connector)
    folders = [_maven.fetch(POMS / f"spark-{connector}.xml") for connector in connectors]
    return ",".join(str(jar) for folder in folders for jar in sorted(folder.iterdir()))


def _check(connector: str) -> None:
    if connector not in _OLDEST:
        raise checks.bad("connectors", connector, f"must be among {', '.join(_OLDEST)}")
    oldest = _OLDEST[connector]
    if tuple(int(number) for number in installed.split(".")[:2]) < oldest:
        rule = (
            f"is chosen for PySpark {'.'.join(map(str, oldest))} and newer, and {installed} "
            "is installed; name its own by spark.jars.packages"
        )
        raise checks.bad("connectors", connector, rule)
