"""A pipeline into a ClickHouse table: checked without a server, and explained without its
secrets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluicegate.spark.pipeline import Pipeline, PipelineError

if TYPE_CHECKING:
    from pathlib import Path

CLICKHOUSE = """\
name = "into clickhouse"
[sources.records]
format = "parquet"
path = "records"
[steps.out]
sql = "SELECT shop, amount FROM records"
[write]
view = "out"
sink = "shops"
[sinks.shops]
kind = "clickhouse"
url = "https://app:much-too-secret@host:8443"
table = "shops"
format = "csv"
settings = { insert_quorum = 2 }
[[sinks.shops.stack]]
kind = "dead_letter"
target = "letters"
[sinks.letters]
kind = "clickhouse"
url = "https://host:8443"
table = "letters"
async_insert = true
"""


def test_a_table_is_checked_without_its_server(tmp_path: Path) -> None:
    file = tmp_path / "clickhouse.toml"
    file.write_text(CLICKHOUSE)
    with pytest.raises(PipelineError) as caught:
        Pipeline.read(file).validate(environment={})
    told = str(caught.value).replace(str(file), "").splitlines()
    assert sorted(told) == sorted(
        [
            ": sinks.shops.format: format='csv': must be one of 'arrow', 'json'",
        ]
    )


def test_a_table_is_explained_without_its_secrets(tmp_path: Path) -> None:
    file = tmp_path / "clickhouse.toml"
    file.write_text(CLICKHOUSE.replace("csv", "json"))
    pipeline = Pipeline.read(file)
    pipeline.validate(environment={})
    told = pipeline.explain()
    assert "secret" not in told
    assert "sink    shops: clickhouse(url=..., table='shops', format='json'" in told
