"""One Spark for all tests of this folder: starting it takes as long as most of them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from penstock.testing import skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local session with two cores and four attempts per task."""
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        skip_or_fail("spark", f"{error}; pip install 'penstock[spark]'")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2,4]")
        .appName("penstock tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
