"""Goals are judged by medians, and every one is on the page, met or missed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from benchmarks.__main__ import main
from benchmarks.cases import CASES
from benchmarks.cases import consumer as consumer_case
from benchmarks.cases.kafka import sink, source
from benchmarks.cases.work import IMPORTS_CASE, WORK_CASE, line_of
from benchmarks.goals import TABLES, batcher, consumer, kafka, kafka_sink, users
from benchmarks.goals.batcher import GOALS, added, interpreters, times
from benchmarks.goals.judging import Goal, GoalTable
from benchmarks.goals.ratios import as_fast, clocks
from benchmarks.harness import Case, Contender, Place, Results, measure, name_of
from benchmarks.kafka.producer_workloads import WAYS
from benchmarks.kafka.workloads import workloads
from benchmarks.stopwatch import Took
from benchmarks.workloads import WORKLOADS
from tests.benchmarks.made import a_case

from benchmarks import consuming, pages, tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

HERE = line_of("3.11.7")


def results(figures: Mapping[tuple[str, str], Sequence[float]]) -> Results:
    """Figures by column and task."""
    return Results(
        WORK_CASE,
        items=10,
        rounds=3,
        figures={name_of(line, work): rounds for (line, work), rounds in figures.items()},
        ours=frozenset(),
        places={name_of(line, work): Place(line, work) for line, work in figures},
    )


SOME = results(
    {
        (HERE, "ours"): [200.0, 300.0, 900.0],
        (HERE, "peer"): [100.0, 100.0, 100.0],
    }
)


def table_of(*goals: Goal) -> GoalTable:
    return GoalTable("batcher", frozenset({WORK_CASE.name}), goals, interpreters)


def row(goal: Goal) -> list[str]:
    head, first = table_of(goal).rows({WORK_CASE.name: SOME})
    assert head == ["work", "goal", "ambitious", HERE]
    return first


@pytest.mark.parametrize(
    ("goal", "cell"),
    [
        (Goal("w", times("ours", "peer"), 3, 2), "3.00 x (2.00 to 9.00): met"),
        (Goal("w", times("ours", "peer"), 4, 3), "3.00 x (2.00 to 9.00): met, ambitious"),
        (Goal("w", times("ours", "peer"), 2.9, 2), "3.00 x (2.00 to 9.00): **missed**"),
        (Goal("w", times("ours", "peer", 50.0), 400, 350, " ns"), "150 ns (100 to 450): met, ambitious"),
        (Goal("w", times("ours", "peer"), 3, 4, at_least=True), "3.00 x (2.00 to 9.00): met"),
        (Goal("w", added("ours", "peer"), 199, 60, " ns"), "200 ns (100 to 800): **missed**"),
        (Goal("w", times("ours", "absent"), 2, 1), "not measured"),
    ],
)  # fmt: skip
def test_a_goal_is_judged_by_the_median_of_its_rounds(goal: Goal, cell: str) -> None:
    assert row(goal)[-1] == cell


def test_a_row_says_what_is_wanted() -> None:
    assert row(Goal("a batch", times("ours", "peer"), 2.5, 2))[:3] == [
        "a batch",
        "at most 2.5 x",
        "2 x",
    ]
    assert row(Goal("w", times("ours", "peer"), 2.5, at_least=True))[1] == "at least 2.5 x"


def test_every_goal_is_about_work_that_is_measured() -> None:
    rounds = [1.0, 1.0, 1.0]
    found = results({(HERE, work): rounds for work in WORKLOADS})
    rows = batcher.TABLE.rows({WORK_CASE.name: found})
    assert len(rows) == 1 + len(GOALS)
    assert not [row for row in rows if "not measured" in row]


@pytest.mark.parametrize(
    ("table", "case", "works"),
    [
        pytest.param(consumer.TABLE, consumer_case.CASE, [*consuming.WORKLOADS], id="consumer"),
        pytest.param(kafka.TABLE, source.CASE, [*workloads("nowhere:9092")], id="kafka"),
        pytest.param(kafka_sink.TABLE, sink.CASE, [*WAYS], id="kafka-sink"),
    ],
)
def test_every_goal_of_a_consumer_is_about_work_that_is_measured(
    table: GoalTable, case: Case, works: Sequence[str]
) -> None:
    figures = {name_of("Python 3.11", work): [1.0, 2.0] for work in works}
    places = {name_of("Python 3.11", work): Place("Python 3.11", work) for work in works}
    rows = table.rows({case.name: Results(case, 10, 2, figures, frozenset(), places)})
    assert rows[0] == ["work", "goal", "ambitious", "Python 3.11"]
    assert [row[-1].split(" ")[0] for row in rows[1:]] == ["1.00"] * len(table.goals)


def test_the_goals_are_written_into_the_page(tmp_path: Path) -> None:
    page = tmp_path / pages.PAGE
    page.parent.mkdir(parents=True)
    page.write_text(
        "before\n<!-- figures: goals-batcher -->\nold\n<!-- end: goals-batcher -->\nafter\n"
    )
    goals = table_of(Goal("a batch", times("ours", "peer"), 2.5, 2))
    found = {WORK_CASE.name: SOME}
    pages.write_goals(goals, found, "a machine", tmp_path)
    text = page.read_text()
    assert "old" not in text
    assert "a machine; 3 rounds.\n\n" + "\n".join(tables.ruled(goals.rows(found))) in text
    assert "| a batch | at most 2.5 x | 2 x | 3.00 x (2.00 to 9.00): **missed** |" in text


def test_a_ratio_is_judged_by_either_clock() -> None:
    contenders = [
        Contender("ours", lambda: Took(wall=4.0, processor=3.0), ours=True),
        Contender("peer", lambda: Took(wall=8.0, processor=1.5)),
    ]
    case = a_case(*contenders)
    goals = GoalTable(
        "made",
        frozenset({"made"}),
        [Goal("work", as_fast(case, "ours", "peer"), 1.0, at_least=True)],
        clocks,
    )
    assert goals.rows({"made": measure(case, items=1, rounds=2)}) == [
        ["work", "goal", "ambitious", "wall time", "processor time"],
        [
            "work",
            "at least 1 x",
            "",
            "2.00 x (2.00 to 2.00): met",
            "0.50 x (0.50 to 0.50): **missed**",
        ],
    ]


@pytest.mark.parametrize("goals", TABLES, ids=[goals.name for goals in TABLES])
def test_the_page_has_a_place_for_the_goals(goals: GoalTable) -> None:
    text = (pages.ROOT / pages.PAGE).read_text()
    assert text.count(f"<!-- figures: {goals.marks} -->") == 1
    assert text.count(f"<!-- end: {goals.marks} -->") == 1


def test_the_page_for_users_tells_goals_that_exist_each_in_its_place() -> None:
    text = (pages.ROOT / pages.FOR_USERS).read_text()
    works = {(table.name, goal.work) for table in TABLES for goal in table.goals}
    told = {(table, work) for table, sentences in users.TOLD.items() for work in sentences}
    assert told <= works
    places = [f"<!-- figures: {users.marks_of(*each)} -->" for each in told]
    assert sorted(re.findall(r"<!-- figures: .* -->", text)) == sorted(places)


def test_what_users_are_told_is_written_by_the_run_that_judges_the_goals(tmp_path: Path) -> None:
    goals = table_of(Goal("`add`, batches of 500, against the skeleton", times("ours", "peer"), 3))
    for page, marks in ((pages.PAGE, goals.marks), (pages.FOR_USERS, "told-batcher-1")):
        path = tmp_path / page
        path.parent.mkdir(parents=True)
        path.write_text(f"<!-- figures: {marks} -->\nstale\n<!-- end: {marks} -->\n")
    pages.write_goals(goals, {WORK_CASE.name: SOME}, "a machine", tmp_path)
    told = " ".join((tmp_path / pages.FOR_USERS).read_text().split())
    assert "takes 3.00 times (2.00 to 9.00; Python 3.11.7) the processor time of" in told
    assert "stale" not in told


@pytest.mark.parametrize("goals", TABLES, ids=[goals.name for goals in TABLES])
def test_the_cases_of_the_goals_exist(goals: GoalTable) -> None:
    assert goals.cases <= {case.name for case in CASES}


def test_the_goals_are_judged_after_their_cases(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {WORK_CASE.name: SOME, IMPORTS_CASE.name: SOME}
    monkeypatch.setattr("benchmarks.__main__.measure", lambda case, **_: found[case.name])
    assert main(["--goals", "batcher", "--quick"]) == 0
    printed = capsys.readouterr().out
    assert "goals, batcher:\n" in printed
    assert all(goal.work in printed for goal in GOALS)
