"""batcher/4b.12: `ObjectSink` and `ParquetSink` pass the conformance suite, on disk and in a
bucket.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.objects.object_help import Bucket, Folder, items_in

from sluicegate.objects import ObjectSink, ParquetSink
from sluicegate.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from collections.abc import Sequence

Item = dict[str, Any]


class Objects(SinkConformance[Item]):
    """Lines of JSON."""

    ordered = False  # objects have no order
    place: Folder | Bucket

    def sink(self) -> Any:
        return ObjectSink(self.place.url, config=self.place.config, compression="gzip")

    def item(self, number: int) -> Item:
        return {"id": number, "word": "x"}

    def bad_item(self, number: int) -> Any:
        return {"id": number, "word": float("nan")}

    def columns(self, items: Sequence[Item]) -> Any:
        pa = pytest.importorskip("pyarrow")
        return pa.RecordBatch.from_pylist(
            [
                {"id": each["id"], "word": None if each["word"] == "x" else each["word"]}
                for each in items
            ]
        )

    async def stored(self) -> list[Item]:
        found = await asyncio.to_thread(self.place.objects)
        return [each | {"word": each["word"] or "x"} for each in items_in(found)]


@pytest.mark.long
class TestObjectsInAFolder(Objects):
    """On disk."""

    @pytest.fixture(autouse=True)
    def on(self, folder: Folder) -> None:
        self.place = folder


class TestObjectsInS3(Objects):
    """In a bucket."""

    @pytest.fixture(autouse=True)
    def on(self, bucket: Bucket) -> None:
        self.place = bucket


class ParquetFiles(Objects):
    """Parquet files."""

    def sink(self) -> Any:
        schema = {"id": "int64", "word": "string"}
        return ParquetSink(self.place.url, config=self.place.config, schema=schema)

    def bad_item(self, number: int) -> Any:
        return {"id": number + 0.5, "word": "x"}

    def columns(self, items: Sequence[Item]) -> Any:
        pa = pytest.importorskip("pyarrow")
        return pa.RecordBatch.from_pylist(items)


class TestParquetInAFolder(ParquetFiles):
    """On disk."""

    @pytest.fixture(autouse=True)
    def on(self, folder: Folder) -> None:
        self.place = folder


@pytest.mark.long
class TestParquetInS3(ParquetFiles):
    """In a bucket."""

    @pytest.fixture(autouse=True)
    def on(self, bucket: Bucket) -> None:
        self.place = bucket
