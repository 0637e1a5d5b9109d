"""What the commands need to know of Spark before and while it runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any


def has_java() -> bool:
    """Whether Spark would find a Java."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java") is not None or (
        home is not None and shutil.which("java", path=Path(home) / "bin") is not None
    )


def cancel() -> None:
    """End Spark's jobs, if there are any."""
    from pyspark import SparkContext

    running: Any = vars(SparkContext)["_active_spark_context"]  # whatever is public makes one
    if running is not None:
        running.cancelAllJobs()
