"""Pipelines into an object store: checked without it, explained without secrets, and run into a
folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluicegate.spark.pipeline import Pipeline, PipelineError

if TYPE_CHECKING:
    from pathlib import Path

OBJECTS = """\
name = "into objects"
[sources.records]
format = "parquet"
path = "records"
[steps.out]
sql = "SELECT shop, amount FROM records"
[write]
view = "out"
sink = "files"
[sinks.files]
kind = "parquet"
url = "s3://lake/shops"
compression = "rar"
partition_by = ["shop"]
config = { secret_access_key = "much-too-secret" }
[sinks.letters]
kind = "object"
url = "ftp://letters"
"""


def test_objects_are_checked_without_their_store(tmp_path: Path) -> None:
    file = tmp_path / "objects.toml"
    file.write_text(OBJECTS)
    with pytest.raises(PipelineError) as caught:
        Pipeline.read(file).validate(environment={})
    told = str(caught.value).replace(str(file), "").splitlines()
    assert len(told) == 2
    assert told[0].startswith(": sinks.files.compression: compression='rar': must be one of")
    assert told[1].startswith(": sinks.letters.url: url='ftp://...': must be a URL such as s3://")


def test_objects_are_explained_without_their_secrets(tmp_path: Path) -> None:
    file = tmp_path / "objects.toml"
    file.write_text(OBJECTS.split("[sinks.letters]")[0].replace("rar", "snappy"))
    pipeline = Pipeline.read(file)
    pipeline.validate(environment={})
    told = pipeline.explain()
    assert "secret" not in told
    assert "sink    files: parquet(" in told
