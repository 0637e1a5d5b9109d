"""The counter in the benchmarks of consuming a topic, and the environments of peers."""

from __future__ import annotations

import asyncio
import sys

import pytest
from benchmarks.environments import environment
from benchmarks.harness import CaseUnavailableError
from benchmarks.kafka.counting import Counter


def test_a_turn_ends_with_its_last_record() -> None:
    async def turn() -> None:
        counter = Counter(2)
        for is_finished in (False, True):
            assert not counter.is_finished
            await counter.handle(object())
            assert counter.is_finished is is_finished
        await counter.wait_finished()
        assert counter.read().wall > 0

    asyncio.run(turn())


def test_a_turn_without_all_of_its_records_is_no_figure() -> None:
    counter = Counter(2)
    asyncio.run(counter.handle(object()))
    with pytest.raises(AssertionError, match="1 of 2 records were handled"):
        counter.read()


def test_a_batch_of_records_is_counted_at_once() -> None:
    async def turn() -> None:
        counter = Counter(5)
        counter.count(5)
        assert counter.is_finished
        await counter.wait_finished()

    asyncio.run(turn())


def test_records_behind_the_last_one_take_no_time() -> None:
    async def turn() -> None:
        counter = Counter(2)
        counter.count(1)
        with pytest.raises(AssertionError, match="1 of 2 records were handled"):
            counter.read_last()
        counter.count(1)
        took = counter.read_last()
        counter.count(1)
        await counter.handle(object())
        assert counter.read_last() is took

    asyncio.run(turn())


def test_an_environment_that_cannot_be_made_leaves_the_case_out(tmp_path: object) -> None:
    with (
        pytest.raises(CaseUnavailableError),
        environment(sys.executable, [f"{tmp_path}/no-package"]),
    ):
        pytest.fail("nothing was installed")
