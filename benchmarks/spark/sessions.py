"""The Spark of the measurements: one machine, two tasks."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

TASKS = 2


def start(*jars: str, more: Mapping[str, str] | None = None) -> Any:
    """Start a session with these jars and further settings."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str | None] = {
        "spark.jars": ",".join(jars),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        **(more or {}),
    }
    spark = SparkSession.builder.master(f"local[{TASKS}]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark
