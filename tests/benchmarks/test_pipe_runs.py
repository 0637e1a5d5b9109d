"""A run from a topic to a destination counts only if it completed all of its work in order."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from benchmarks.cases.kafka.pipe import CASE, HOT_CASE, KEYED, SIZES
from benchmarks.goals import pipe
from benchmarks.harness import Place, Results, name_of
from benchmarks.kafka.pipes.actions import ACTIONS, account_of, actions, number_of, row_of
from benchmarks.kafka.pipes.runs import Run
from benchmarks.kafka.pipes.slow import SlowDestination

from sluicegate import RowBatch

ROWS = [row_of(json.loads(value)) for _, value in actions(5, keys=1)]


def test_values_are_as_long_as_they_are_said_to_be() -> None:
    for key, value in actions(100, keys=10):
        assert 100 <= len(value) <= 200
        row = row_of(json.loads(value))
        assert len(row) == len(ACTIONS.columns)
        assert account_of(row).encode() == key


def test_records_are_numbered_in_their_order() -> None:
    assert [number_of(row) for row in ROWS] == [0, 1, 2, 3, 4]


def test_a_run_without_all_of_its_rows_is_no_figure() -> None:
    run = Run("nowhere:9092", "topic", count=3)
    run.begin()
    assert not run.store(2)
    with pytest.raises(AssertionError, match="2 of 3 rows"):
        run.read()
    assert run.store(1)
    assert run.read().wall > 0


def test_a_run_begins_with_its_first_record() -> None:
    run = Run("nowhere:9092", "topic", count=1)
    ((_, value),) = actions(1, keys=1)
    run.store(1)
    with pytest.raises(AssertionError):
        run.read()
    assert run.decode(SimpleNamespace(value=value)) == ROWS[0]
    assert run.read().wall > 0


def test_the_slow_destination_takes_the_next_rows_only() -> None:
    async def write() -> None:
        to = SlowDestination()
        await to.write(RowBatch(ROWS[:2]))
        with pytest.raises(AssertionError, match="2 of 5 rows"):
            to.check(5)
        with pytest.raises(AssertionError, match="from 2 on"):
            await to.write(RowBatch(ROWS[3:]))

    asyncio.run(write())


def test_every_goal_of_a_pipe_is_about_work_that_is_measured() -> None:
    lines = ("getmany, executemany, commit", "getmany, COPY, commit", "flow.pipe", KEYED)
    places = {name_of(line, size): Place(line, size) for line in lines for size in SIZES}
    table = {name: [30.0, 40.0] for name in places}
    hot = {KEYED: [40.0, 50.0]}
    found = {
        CASE.name: Results(CASE, 10, 2, table, frozenset(), places),
        HOT_CASE.name: Results(HOT_CASE, 10, 2, hot, frozenset()),
    }
    rows = pipe.TABLE.rows(found)
    assert rows[0] == ["work", "goal", "ambitious", "wall time"]
    figures = ["1.00", "1.00", "1.00", "1.00", "1.00", "1.00", "22500"]
    assert [row[-1].split(" ")[0] for row in rows[1:]] == figures
