"""Guarantees that cannot be kept are refused on the driver. White box: the choice of a level."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
from sluicegate import Batch, ConfigError
from sluicegate.sinks import MemorySink
from sluicegate.spark import foreach_batch
from sluicegate.spark.levels import Level


class Plain:
    async def write(self, batch: Batch[Any]) -> None:
        """A sink without transactions."""


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"delivery": "exactly_once"}, "delivery='exactly_once'"),
        ({"key": ()}, "delivery='bucket': needs key"),
        ({"app_id": None}, "app_id=None: must be given together with the other one"),
        ({"version": None}, "version=None: must be given together with the other one"),
        ({"app_id": None, "version": None}, "app_id=None: is needed for delivery='bucket'"),
        ({"version": -1}, "version=-1"),
        ({"app_id": ""}, "application=''"),
        ({"sink": Plain()}, "cannot write in a transaction"),
        ({"delivery": "at_least_once", "key": ()}, "app_id='job': needs key"),
        ({"mode": "upsert"}, "mode='upsert'"),
        ({"mode": "overwrite"}, "mode='overwrite': needs delivery=\"atomic\""),
        ({"delivery": "atomic"}, "has no stages that become visible at once"),
        (
            {"delivery": "atomic", "version": None},
            "version=None: must be given together with the other one",
        ),
    ],
)
def test_mistakes_are_told_before_anything_runs(changed: dict[str, Any], told: str) -> None:
    given: dict[str, Any] = {
        "sink": MemorySink(),
        "delivery": "bucket",
        "mode": "append",
        "partition": None,
        "key": ("id",),
        "app_id": "job",
        "version": 3,
        **changed,
    }
    with pytest.raises(ConfigError, match=told):
        Level.of(given.pop("sink"), **given)


def test_a_stream_counts_its_versions_itself() -> None:
    with pytest.raises(
        ConfigError, match="version=3: cannot be set: it is the number of the micro-batch"
    ):
        foreach_batch(MemorySink(), version=3)
