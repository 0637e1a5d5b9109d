"""A pipeline into Redis: checked without a server, and explained without its secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("redis")

from sluicegate.spark.pipeline import Pipeline, PipelineError

if TYPE_CHECKING:
    from pathlib import Path

REDIS = """\
name = "into redis"
[sources.records]
format = "parquet"
path = "records"
[steps.out]
sql = "SELECT shop, amount, id FROM records"
[write]
view = "out"
sink = "stream"
[sinks.stream]
kind = "redis"
url = "redis://app:much-too-secret@host"
stream_field = "shopp"
id = "id"
fields = ["shop", "amount"]
maxlen = 0
client_options = { ssl_password = "another-secret" }
[sinks.nowhere]
kind = "redis"
stream = "s"
list = "l"
"""


def test_a_stream_is_checked_without_a_server(tmp_path: Path) -> None:
    file = tmp_path / "redis.toml"
    file.write_text(REDIS)
    with pytest.raises(PipelineError) as caught:
        Pipeline.read(file).validate(environment={})
    told = str(caught.value).replace(str(file), "").splitlines()
    assert sorted(told) == sorted(
        [
            ": sinks.stream.stream_field: there is no column 'shopp'; did you mean 'shop'?",
            ": sinks.stream.maxlen: maxlen=0: must be a whole number of at least 1",
            ": sinks.nowhere: url=None: must be given, or client=; is an environment variable not set?",
        ]
    )


def test_a_stream_is_explained_without_its_secrets(tmp_path: Path) -> None:
    file = tmp_path / "redis.toml"
    file.write_text(
        REDIS.split("[sinks.nowhere]")[0]
        .replace("shopp", "shop")
        .replace("maxlen = 0", "maxlen = 9")
    )
    pipeline = Pipeline.read(file)
    pipeline.validate(environment={})
    told = pipeline.explain()
    assert "secret" not in told
    assert "sink    stream: redis(url=..., stream_field='shop', id='id'" in told
