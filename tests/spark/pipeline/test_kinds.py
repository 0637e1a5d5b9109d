"""Each kind of sink in a pipeline: checked without a server, and explained without its secrets."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from sluicegate.spark import Pipeline, PipelineError

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """\
name = "into a sink"
[sources.records]
format = "parquet"
path = "records"
[steps.out]
sql = "SELECT shop, amount, body, id FROM records"
[write]
view = "out"
sink = "it"
"""


@dataclass(frozen=True)
class Case:
    """A sink with mistakes, the mistakes, and what makes it right."""

    declared: str
    mistakes: list[str]
    right: dict[str, str]
    """The corrections; `[sinks.nowhere]` and what follows it are left out."""
    explained: list[str]
    client: str = ""


CASES = {
    "clickhouse": Case(
        declared="""\
[sinks.it]
kind = "clickhouse"
url = "https://app:much-too-secret@host:8443"
table = "shops"
format = "csv"
settings = { insert_quorum = 2 }
[[sinks.it.stack]]
kind = "dead_letter"
target = "letters"
[sinks.letters]
kind = "clickhouse"
url = "https://host:8443"
table = "letters"
async_insert = true
""",
        mistakes=["it.format: format='csv': must be one of 'arrow', 'json'"],
        right={"csv": "json"},
        explained=["sink    it: clickhouse(url=..., table='shops', format='json'"],
    ),
    "objects": Case(
        declared="""\
[sinks.it]
kind = "parquet"
url = "s3://lake/shops"
compression = "rar"
partition_by = ["shop"]
config = { secret_access_key = "much-too-secret" }
[sinks.nowhere]
kind = "object"
url = "ftp://letters"
""",
        mistakes=[
            "it.compression: compression='rar': must be one of",
            "nowhere.url: url='ftp://...': must be a URL such as s3://",
        ],
        right={"rar": "snappy"},
        explained=["sink    it: parquet("],
    ),
    "udp": Case(
        declared="""\
[sinks.it]
kind = "udp"
hosts = "statsd.internal"
port = 8125
timeout = 2.0
max_datagram = 512
""",
        mistakes=["it.host: is missing", "it.hosts: is unknown to udp; did you mean 'host'?"],
        right={"hosts": "host"},
        explained=["sink    it: udp(host='statsd.internal', port=8125, "],
    ),
    "sql": Case(
        declared="""\
[sinks.it]
kind = "sql"
url = "mysql+pymysql://app:much-too-secret@host/shops"
table = "shops"
on_conflict = "replace"
engine_options = { connect_args = { init_command = "another-secret" } }
[sinks.nowhere]
kind = "sql"
url = "oracle+oracledb://app:secret@host/shops"
table = "shops"
""",
        mistakes=[
            "it.on_conflict: on_conflict='replace': must be one of 'error', 'ignore', 'update'",
            "nowhere.url: url='oracle': must be MySQL, MariaDB or SQLite; write your ",
        ],
        right={"replace": "ignore"},
        explained=["sink    it: sql(url=..., table='shops', on_conflict='ignore'"],
    ),
    "redis": Case(
        declared="""\
[sinks.it]
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
""",
        mistakes=[
            "it.maxlen: maxlen=0: must be a whole number of at least 1",
            "it.stream_field: there is no column 'shopp'; did you mean 'shop'?",
            "nowhere: url=None: must be given, or client=; is an environment variable not set?",
        ],
        right={"shopp": "shop", "maxlen = 0": "maxlen = 9"},
        explained=["sink    it: redis(url=..., stream_field='shop', id='id'"],
        client="redis",
    ),
    "nats": Case(
        declared="""\
[sinks.it]
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
""",
        mistakes=[
            "it.ack_timeout: ack_timeout=0: must be more than 0 seconds (a number or a timedelta)",
            "it.max_reconnect_attempts: max_reconnect_attempts=...: is set by Sluicegate: a lost ",
            "it.subject_field: there is no column 'shopp'; did you mean 'shop'?",
            "it.tls.cafil: is unknown to tls; did you mean 'cafile'?",
            "nowhere.servers: is missing",
        ],
        right={
            "shopp": "shop",
            "max_reconnect_attempts = 3\nack_timeout = 0": "ack_timeout = 2",
            "cafil ": "cafile ",
        },
        explained=[
            "sink    it: nats(subject_field='shop'",
        ],
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_sink_is_checked_and_explained(kind: str, tmp_path: Path) -> None:
    case = CASES[kind]
    if case.client and importlib.util.find_spec(case.client) is None:
        pytest.skip(f"{case.client} is not installed")
    file = tmp_path / "pipeline.toml"
    file.write_text(HEAD + case.declared)
    with pytest.raises(PipelineError) as caught:
        Pipeline.read(file).validate(environment={})
    found = sorted(str(caught.value).replace(f"{file}: sinks.", "").splitlines())
    for line, mistake in zip(found, case.mistakes, strict=True):
        assert line.startswith(mistake)
    right = case.declared.split("[sinks.nowhere]")[0]
    for wrong, correct in case.right.items():
        right = right.replace(wrong, correct)
    file.write_text(HEAD + right)
    pipeline = Pipeline.read(file)
    pipeline.validate(environment={})
    told = pipeline.explain()
    assert "secret" not in told
    for part in case.explained:
        assert part in told
