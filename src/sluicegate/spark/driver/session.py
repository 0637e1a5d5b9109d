"""Java and the running jobs of this process, for programs that run Spark."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any


def has_java() -> bool:
    """Return whether Spark can find Java."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java") is not None or (
        home is not None and shutil.which("java", path=Path(home) / "bin") is not None
    )


def cancel() -> None:
    """Cancel all jobs of the active Spark context, if there is one that is not being stopped."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    running: Any = vars(SparkContext)["_active_spark_context"]  # public functions create one
    if running is not None:
        with suppress(Py4JError, AttributeError):  # a stopped context has no jobs, then no JVM
            running.cancelAllJobs()
