"""The sinks that a worker process keeps open. White box: the worker."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from pyspark import cloudpickle

from sluicegate import RefusedError
from sluicegate.files import FileSink
from sluicegate.spark.task.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def here() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


def described(sink: object) -> bytes:
    return bytes(cloudpickle.dumps(sink))  # type: ignore[no-untyped-call]


def is_open(sink: object) -> bool:
    return isinstance(sink, FileSink) and sink.is_open


def test_a_sink_stays_open_from_task_to_task(here: Worker, tmp_path: Path) -> None:
    description = described(FileSink(tmp_path / "events.jsonl"))
    with here.using(description) as first:
        pass
    with here.using(description) as second:
        assert second is first
        assert is_open(second)


def test_an_idle_sink_is_closed_for_another_one(here: Worker, tmp_path: Path) -> None:
    """Otherwise its connections would stay open for the rest of the session, and its file would
    stay locked.
    """
    path = tmp_path / "events.jsonl"
    with here.using(described(FileSink(path))) as first:
        assert is_open(first)
    with here.using(described(FileSink(path, fsync="never"))) as second:
        assert is_open(second)
        assert not is_open(first)


def test_a_sink_in_use_is_not_closed_for_another_one(here: Worker, tmp_path: Path) -> None:
    one, other = (described(FileSink(tmp_path / name)) for name in ("a.jsonl", "b.jsonl"))
    with here.using(one) as first, here.using(other) as second:
        assert is_open(first)
        assert is_open(second)


def test_a_sink_that_does_not_open_leaves_nothing_behind(here: Worker, tmp_path: Path) -> None:
    description = described(FileSink(tmp_path / "not-there" / "events.jsonl"))
    with (
        pytest.raises(RefusedError, match=r"not-there.*create the folder"),
        here.using(description),
    ):
        pass
    (tmp_path / "not-there").mkdir()
    with here.using(description) as sink:
        assert is_open(sink)


def test_garbage_is_not_searched_among_the_modules_after_every_task(
    here: Worker, tmp_path: Path
) -> None:
    gc.unfreeze()  # what pytest has frozen
    with here.using(described(FileSink(tmp_path / "events.jsonl"))):
        assert len(gc.get_objects()) < gc.get_freeze_count()
