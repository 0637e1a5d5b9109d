"""A pipeline into a table of a SQL database: checked without a server, and explained without its
secrets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluicegate.spark.pipeline import Pipeline, PipelineError

if TYPE_CHECKING:
    from pathlib import Path

SQL = """\
name = "into sql"
[sources.records]
format = "parquet"
path = "records"
[steps.out]
sql = "SELECT shop, amount FROM records"
[write]
view = "out"
sink = "shops"
[sinks.shops]
kind = "sql"
url = "mysql+asyncmy://app:much-too-secret@host/shops"
table = "shops"
on_conflict = "replace"
engine_options = { connect_args = { init_command = "another-secret" } }
[sinks.nowhere]
kind = "sql"
url = "oracle+oracledb://app:secret@host/shops"
table = "shops"
"""


def test_a_table_is_checked_without_its_database(tmp_path: Path) -> None:
    file = tmp_path / "sql.toml"
    file.write_text(SQL)
    with pytest.raises(PipelineError) as caught:
        Pipeline.read(file).validate(environment={})
    told = str(caught.value).replace(str(file), "").splitlines()
    assert sorted(told) == sorted(
        [
            ": sinks.shops.on_conflict: on_conflict='replace': must be one of 'error', 'ignore', 'update'",
            ": sinks.nowhere.url: url='oracle': must be PostgreSQL, MySQL, MariaDB or SQLite; write your "
            "own sink for other databases",
        ]
    )


def test_a_table_is_explained_without_its_secrets(tmp_path: Path) -> None:
    file = tmp_path / "sql.toml"
    file.write_text(SQL.split("[sinks.nowhere]")[0].replace("replace", "ignore"))
    pipeline = Pipeline.read(file)
    pipeline.validate(environment={})
    told = pipeline.explain()
    assert "secret" not in told
    assert "sink    shops: sql(url=..., table='shops', on_conflict='ignore'" in told
