"""A pipeline into NATS: checked without a server, and explained without its secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluicegate.spark.pipeline import Pipeline, PipelineError

if TYPE_CHECKING:
    from pathlib import Path

NATS = """\
name = "into nats"
[sources.records]
format = "parquet"
path = "records"
[steps.out]
sql = "SELECT shop, body, id FROM records"
[write]
view = "out"
sink = "stream"
[sinks.stream]
kind = "nats"
subject_field = "shopp"
servers = "nats://app:much-too-secret@host:4222"
value = "body"
message_id = "id"
max_reconnect_attempts = 3
ack_timeout = 0
password = "written-out-secret"
tls = { cafil = "x" }
[sinks.nowhere]
kind = "nats"
subject = "a.*"
"""


def test_a_stream_is_checked_without_a_server(tmp_path: Path) -> None:
    file = tmp_path / "nats.toml"
    file.write_text(NATS)
    with pytest.raises(PipelineError) as caught:
        Pipeline.read(file).validate(environment={})
    told = str(caught.value).replace(str(file), "").splitlines()
    assert sorted(told) == sorted(
        [
            ": sinks.stream.subject_field: there is no column 'shopp'; did you mean 'shop'?",
            ": sinks.stream.max_reconnect_attempts: max_reconnect_attempts=...: is set by Sluicegate: "
            "a lost connection is restored without a time limit",
            ": sinks.stream.ack_timeout: ack_timeout=0: must be more than 0 seconds (a number or a "
            "timedelta)",
            ": sinks.stream.tls.cafil: is unknown to tls; did you mean 'cafile'?",
            ": sinks.nowhere.servers: is missing",
        ]
    )


def test_a_stream_is_explained_without_its_secrets(tmp_path: Path) -> None:
    file = tmp_path / "nats.toml"
    file.write_text(
        NATS.split("[sinks.nowhere]")[0]
        .replace("shopp", "shop")
        .replace("max_reconnect_attempts = 3\nack_timeout = 0", "max_in_flight = 100")
        .replace("cafil ", "cafile ")
    )
    pipeline = Pipeline.read(file)
    pipeline.validate(environment={})
    told = pipeline.explain()
    assert "secret" not in told
    assert "sink    stream: nats(subject_field='shop'" in told
    assert "at most once" not in told


def test_plain_publishing_is_explained_as_at_most_once(tmp_path: Path) -> None:
    file = tmp_path / "nats.toml"
    text = NATS.split("max_reconnect_attempts")[0].replace("shopp", "shop")
    file.write_text(f'{text}\ndelivery = "core"\n')
    pipeline = Pipeline.read(file)
    pipeline.validate(environment={})
    assert "at most once: messages are not stored" in pipeline.explain()
