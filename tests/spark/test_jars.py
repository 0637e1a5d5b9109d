"""Connector jars: those that fit the installed PySpark, or an explanation why there are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluicegate import ConfigError
from sluicegate.errors import MissingJars
from sluicegate.spark import connector_jars
from sluicegate.testing.servers.require import skip_or_fail


def test_each_connector_has_its_jars() -> None:
    try:
        jars = connector_jars("kafka", "postgresql")
    except MissingJars as error:
        skip_or_fail("kafka", str(error))
    paths = [Path(jar) for jar in jars.split(",")]
    assert all(path.is_file() for path in paths)
    assert [path.name.rsplit("-", 1)[0] for path in paths] == [
        "commons-pool2",
        "kafka-clients",
        "spark-sql-kafka-0-10_2.13",
        "spark-token-provider-kafka-0-10_2.13",
        "postgresql",
    ]


def test_an_unknown_connector_is_refused() -> None:
    wrong: Any = "rabbit"
    with pytest.raises(ConfigError, match=r"connectors.*rabbit.*kafka, postgresql"):
        connector_jars(wrong)


@pytest.mark.parametrize(
    ("installed", "fits"),
    [("3.5.7", False), ("4.1.0", False), ("4.2.0", True), ("4.3.0.dev1", True)],
)
def test_an_older_pyspark_is_told_that_the_jars_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: str, fits: bool
) -> None:
    monkeypatch.setattr("pyspark.__version__", installed)
    monkeypatch.setattr("sluicegate._core.cache.fetch", lambda pom: tmp_path)
    if fits:
        assert connector_jars("kafka") == ""
    else:
        with pytest.raises(ConfigError, match=rf"4\.2.*{installed}"):
            connector_jars("kafka")
