"""One Spark for all tests of this folder: starting it takes as long as most of them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate.errors import MissingJars
from sluicegate.testing.servers.require import skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local session with two cores and four attempts per task."""
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        skip_or_fail("spark", f"{error}; pip install 'sluicegate[spark]'")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2,4]")
        .appName("sluicegate tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.jars", ",".join(filter(None, map(_jars, ("kafka", "postgresql")))))
        .config(
            "spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        )  # long compilation costs more than it saves
    )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark_reads_kafka(spark: Any) -> None:
    """Skip if Spark has no jars for Kafka, unless `SLUICEGATE_REQUIRE` names `kafka`."""
    if "kafka" not in spark.conf.get("spark.jars"):
        skip_or_fail("kafka", "there are no jars for Spark's connector")


@pytest.fixture(scope="session")
def spark_reads_postgres(spark: Any) -> None:
    """Skip if Spark has no JDBC driver, unless `SLUICEGATE_REQUIRE` names `postgres`."""
    if "postgresql" not in spark.conf.get("spark.jars"):
        skip_or_fail("postgres", "there is no jar of PostgreSQL's JDBC driver")


def _jars(connector: Any) -> str:
    from sluicegate.spark import connector_jars

    try:
        return connector_jars(connector)
    except MissingJars:
        return ""
