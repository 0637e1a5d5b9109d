"""A pipeline of metrics by UDP: checked and explained without a receiver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluicegate.spark.pipeline import Pipeline, PipelineError

if TYPE_CHECKING:
    from pathlib import Path

UDP = """\
name = "metrics"
[sources.records]
format = "parquet"
path = "records"
[steps.out]
sql = "SELECT concat('sales.', shop) AS name, amount AS value, 'c' AS type FROM records"
[write]
view = "out"
sink = "statsd"
[sinks.statsd]
kind = "udp"
host = "statsd.internal"
port = 8125
encode = "line"
max_datagram = 512
"""


def test_metrics_are_checked_without_a_receiver(tmp_path: Path) -> None:
    file = tmp_path / "udp.toml"
    file.write_text(
        UDP.replace("8125", "0").replace('"line"', '"lines"').replace("host =", "hosts =")
    )
    with pytest.raises(PipelineError) as caught:
        Pipeline.read(file).validate(environment={})
    told = str(caught.value).replace(str(file), "").splitlines()
    assert sorted(told) == sorted(
        [
            ": sinks.statsd.host: is missing",
            ": sinks.statsd.hosts: is unknown to udp; did you mean 'host'?",
        ]
    )


def test_metrics_are_explained_as_at_most_once(tmp_path: Path) -> None:
    file = tmp_path / "udp.toml"
    file.write_text(UDP)
    pipeline = Pipeline.read(file)
    pipeline.validate(environment={})
    told = pipeline.explain()
    assert "sink    statsd: udp(host='statsd.internal', port=8125, encode='line'" in told
    assert "at most once: the arrival of a datagram is unknown" in told
