"""The benchmarks run and report measurements. No time is judged."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from benchmarks.__main__ import main
from benchmarks.cases import CASES
from benchmarks.harness import (
    BYTES_PER_ITEM,
    MS,
    NS_PER_ITEM,
    Above,
    AtMost,
    Case,
    CaseUnavailableError,
    Ceiling,
    Contender,
    Flat,
    Results,
    Target,
    measure,
    placed,
)
from benchmarks.processes import FamilyStopwatch
from benchmarks.stopwatch import Clock, Stopwatch, Took
from tests.benchmarks.made import a_case
from tests.surface import SOURCE

from benchmarks import flame, pages, tables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.harness import Aim


def some_results(targets: Sequence[Aim] = ()) -> Results:
    figures = {"ours": [100.0, 200.0, 300.0], "peer": [1000.0, 1000.0, 6000.0]}
    return Results(a_case(targets=targets), 10, 3, figures, frozenset({"ours"}))


def test_contenders_take_turns_and_the_first_round_is_not_counted() -> None:
    turns: list[str] = []

    def turn(name: str) -> Callable[[], float]:
        def take() -> float:
            turns.append(name)
            return len(turns) * 1e-9

        return take

    results = measure(
        a_case(Contender("ours", turn("ours"), ours=True), Contender("peer", turn("peer"))),
        items=1,
        rounds=2,
    )
    assert turns == ["ours", "peer"] * 3
    assert results.figures["ours"] == pytest.approx([3, 5])
    assert results.figures["peer"] == pytest.approx([4, 6])
    assert results.ours == {"ours"}


@pytest.mark.parametrize(
    ("clock", "judged", "beside", "head"),
    [
        (Clock.WALL, [4.0, 4.0], [3.0, 3.0], "| ns per item, wall | least to most | processor |"),
        (
            Clock.PROCESSOR,
            [3.0, 3.0],
            [4.0, 4.0],
            "| ns per item, processor | least to most | wall |",
        ),
    ],
)
def test_a_turn_has_a_wall_and_a_processor_time_and_the_case_is_judged_by_one(
    clock: Clock, judged: list[float], beside: list[float], head: str
) -> None:
    contender = Contender("ours", lambda: Took(wall=4e-9, processor=3e-9), ours=True)
    peer = Contender("peer", lambda: Took(wall=8e-9, processor=8e-9))
    results = measure(replace(a_case(contender, peer), by=clock), items=1, rounds=2)
    assert results.figures["ours"] == pytest.approx(judged)
    assert results.beside["ours"] == pytest.approx(beside)
    text = tables.for_markdown(results)
    assert head in text
    assert (
        f"| ours | {judged[0]:.1f} | {judged[0]:.1f} to {judged[0]:.1f} | {beside[0]:.1f} |" in text
    )


def test_a_peer_that_is_not_installed_has_neither_a_column_nor_a_target() -> None:
    targets: list[Aim] = [
        Target("ours", "peer", 5.0),
        AtMost("ours", "peer", 1.0),
        Ceiling("ours", 9.0),
    ]
    case = a_case(Contender("ours", lambda: 4e-9, ours=True), targets=targets)
    results = measure(case, items=1, rounds=2)
    assert [verdict.text for verdict in results.verdicts()] == [
        "ours never above 9 ns per item: at most 4.0"
    ]
    assert "x peer" not in tables.for_markdown(results)


def test_the_median_of_several_turns_is_the_figure_of_their_round() -> None:
    times = iter([9.0, 9.0, 9.0, 1.0, 8.0, 2.0])
    contender = Contender("ours", lambda: Took(wall=(n := next(times)) * 1e-9, processor=-n))
    plain = Contender("peer", lambda: 5e-9)
    results = measure(replace(a_case(contender, plain), turns=3), items=1, rounds=1)
    assert results.figures["ours"] == pytest.approx([2.0])
    assert results.beside["ours"] == pytest.approx([-2e9])
    assert results.figures["peer"] == pytest.approx([5.0])


def test_a_case_along_something_has_a_table_of_its_own_for_the_other_clock() -> None:
    took = Took(wall=4e-9, processor=3e-9)
    contenders = [
        placed("ours", 1, lambda: took, ours=True, items=1),
        placed("peer", 1, lambda: 8e-9, items=1),
    ]
    case = replace(a_case(*contenders), along="items", by=Clock.PROCESSOR)
    text = tables.for_markdown(measure(case, items=1, rounds=2))
    assert "| items, processor time | ours, ns per item | peer, ns per item |" in text
    assert "| wall time | ours, ns per item |\n" in text
    assert "| 1 | 4.0 (4.0 to 4.0) |\n" in text


def test_processor_time_is_that_of_this_process() -> None:
    """Not that of another process, which it waits for."""
    watch = Stopwatch()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    took = watch.read()
    assert took.processor < took.wall / 2
    assert took + took == Took(2 * took.wall, 2 * took.processor)


def test_processor_time_of_the_family_is_that_of_its_processes_too() -> None:
    """Of a running one, and of one that has ended."""
    pytest.importorskip("psutil")
    spin = "sum(range(3_000_000)); print(flush=True)"
    watch = FamilyStopwatch()
    alone = Stopwatch()
    subprocess.run([sys.executable, "-c", spin], check=True)
    ended = watch.read().processor - alone.read().processor
    command = [sys.executable, "-c", f"{spin}; input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        both = watch.read().processor - alone.read().processor
        running.communicate(b"\n")
    assert ended > 0.02
    assert both > ended + 0.02


def test_bytes_have_no_rate() -> None:
    case = replace(a_case(), unit=BYTES_PER_ITEM)
    results = Results(case, 10, 1, {"ours": [1.0], "peer": [2.0]}, frozenset())
    assert "items/s" not in tables.for_markdown(results)


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    ratio = some_results().ratio("ours", "peer")
    assert (ratio.median, ratio.least, ratio.most) == (10, 5, 20)


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target("ours", "peer", 10), True),
        (Target("ours", "peer", 11), False),
        (Ceiling("ours", 300), True),
        (Ceiling("ours", 299), False),
        (AtMost("peer", "ours", 10), True),
        (AtMost("peer", "ours", 9.9), False),
        (Above("peer", "ours", 5700), True),
        (Above("peer", "ours", 5699), False),
    ],
)
def test_a_target_is_judged_by_the_median_ratio_and_a_ceiling_by_the_slowest_round(
    target: Aim, met: bool
) -> None:
    results = some_results([target])
    assert [verdict.met for verdict in results.verdicts()] == [met]
    assert ("met: " in tables.for_markdown(results)) is met
    assert ("MISSED" in tables.for_terminal(results)) is not met


def along_sizes(*, words: bool = False, targets: Sequence[Aim] = ()) -> Results:
    """Two lines at two points; `ours` takes 10 and 12 ns per item, `peer` exists at the second
    point only.
    """
    first, second = ("few", "many") if words else (10, 1_000)
    contenders = [
        placed("ours", first, lambda: 100e-9, ours=True, items=10),
        placed("ours", second, lambda: 12_000e-9, ours=True, items=1_000),
        placed("peer", second, lambda: 24_000e-9, items=1_000),
    ]
    case = replace(
        a_case(*contenders, targets=targets),
        along="items",
        notes=lambda found: [f"{len(found.lines)} lines"],
    )
    return measure(case, items=77, rounds=2)


def test_a_case_along_something_has_a_row_for_each_point_and_a_column_for_each_line() -> None:
    text = tables.for_markdown(along_sizes())
    assert "| items | ours, ns per item | peer, ns per item |" in text
    assert "| 10 | 10.0 (10.0 to 10.0) |  |" in text
    assert "| 1,000 | 12.0 (12.0 to 12.0) | 24.0 (24.0 to 24.0) |" in text
    assert "| x peer | ours |" in text
    assert "| 1,000 | 2.00 (2.00 to 2.00) |" in text
    assert "- 2 lines" in text


@pytest.mark.parametrize(("factor", "met"), [(1.25, True), (1.15, False)])
def test_a_line_is_flat_if_no_point_takes_much_longer_or_shorter_than_the_first(
    factor: float, met: bool
) -> None:
    results = along_sizes(targets=[Flat("ours", factor)])
    assert [verdict.met for verdict in results.verdicts()] == [met]


def test_the_fastest_of_some_lines_in_each_round_is_a_peer_without_a_column() -> None:
    rounds = itertools.cycle([1e-9, 4e-9, 2e-9])
    contenders = [
        placed("ours", 10, lambda: Took(wall=6e-9, processor=6e-9), ours=True, items=1),
        placed("first", 10, lambda: Took(wall=(n := next(rounds)), processor=3 * n), items=1),
        placed("second", 10, lambda: Took(wall=3e-9, processor=3e-9), items=1),
        placed("other", 10, lambda: Took(wall=0.5e-9, processor=0.5e-9), items=1),
    ]
    case = replace(
        a_case(*contenders),
        along="items",
        peers=("the best",),
        fastest={"the best": ("first", "second", "third")},
    )
    results = measure(case, items=1, rounds=2)
    assert results.figures["the best, 10"] == pytest.approx([3.0, 2.0])
    assert results.beside["the best, 10"] == pytest.approx([3.0, 3.0])
    text = tables.for_markdown(results)
    assert "the best, ns" not in text
    assert "| x the best | ours | first | second | other |" in text
    assert "| 10 | 0.42 (0.33 to 0.50) |" in text


@pytest.mark.parametrize("words", [False, True])
def test_a_case_along_something_is_drawn_with_every_line(words: bool, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = pages.write_plot(along_sizes(words=words), tmp_path).read_text()
    assert "ours" in drawn
    assert "peer" in drawn


def test_the_parts_of_a_whole_are_drawn_in_one_bar_with_their_sum(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    contenders = [
        placed("first", "way", lambda: 30e-9, items=1),
        placed("second", "way", lambda: 12e-9, ours=True, items=1),
    ]
    case = replace(a_case(*contenders), along="way", is_stacked=True)
    drawn = pages.write_plot(measure(case, items=1, rounds=1), tmp_path).read_text()
    assert {">30<", ">12<", ">42<", ">first<", ">second<"} <= {*re.findall(r">[a-z0-9]+<", drawn)}


def test_the_page_names_the_libraries_of_other_environments(tmp_path: Path) -> None:
    page = tmp_path / pages.PAGE
    page.parent.mkdir(parents=True)
    page.write_text("<!-- figures: made -->\n<!-- end: made -->\n")
    case = a_case(
        Contender("ours", lambda: 1e-6, ours=True),
        *(Contender(name, lambda: 1e-6, library="peer 1.2") for name in ("peer", "another")),
    )
    pages.write_page(measure(case, items=10, rounds=1), "a machine", tmp_path)
    assert "a machine, peer 1.2; 10 items, 1 rounds." in page.read_text()


def test_more_lines_than_colours_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    contenders = [placed(f"line {n}", "at", lambda: 1.0, ours=True) for n in range(9)]
    results = measure(replace(a_case(*contenders), along="work"), items=1, rounds=1)
    assert "line 8" in pages.write_plot(results, tmp_path).read_text()


def test_milliseconds_are_not_divided_by_the_items() -> None:
    assert MS.per_item is False
    assert NS_PER_ITEM.per_item is True


def test_the_page_gets_table_plot_and_machine_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / pages.PAGE
    page.parent.mkdir(parents=True)
    page.write_text("before\n<!-- figures: made -->\nold\n<!-- end: made -->\nafter\n")
    pages.write_page(some_results(), "a machine", tmp_path)
    text = page.read_text()
    assert text.startswith("before\n<!-- figures: made -->\n")
    assert text.endswith("<!-- end: made -->\nafter\n")
    assert "old" not in text
    assert "a machine; 10 items, 3 rounds." in text
    assert "| ours | 200 | 100 to 300 | 5,000,000 | 10.0 (5.0 to 20.0) |" in text
    assert "(plots/made.svg)" in text


def test_a_case_that_is_not_drawn_has_no_picture_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / pages.PAGE
    page.parent.mkdir(parents=True)
    page.write_text("<!-- figures: made -->\n<!-- end: made -->\n")
    results = some_results()
    pages.write_page(replace(results, case=replace(results.case, is_drawn=False)), "", tmp_path)
    assert "| ours | 200 |" in page.read_text()
    assert ".svg" not in page.read_text()


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    page = tmp_path / pages.PAGE
    page.parent.mkdir(parents=True)
    page.write_text("nothing here\n")
    with pytest.raises(LookupError, match="figures: made"):
        pages.write_page(some_results(), "a machine", tmp_path)


def test_the_same_results_draw_the_same_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    first = pages.write_plot(some_results(), tmp_path / "a").read_bytes()
    second = pages.write_plot(some_results(), tmp_path / "b").read_bytes()
    assert first == second
    assert b"ours" in first
    assert not re.search(rb"<dc:date>", first)


def test_the_docs_have_marks_for_every_case() -> None:
    text = (pages.ROOT / pages.PAGE).read_text()
    for case in CASES:
        assert text.count(f"<!-- figures: {case.name} -->") == 1
        assert text.count(f"<!-- end: {case.name} -->") == 1


def test_a_case_that_cannot_run_says_why_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = a_case(Contender("ours", lambda: 1e-6, ours=True), Contender("peer", lambda: 1e-6))
    monkeypatch.setattr("benchmarks.__main__.CASES", (a_case(unavailable="no server here"), fine))
    monkeypatch.setattr("benchmarks.flame.draw", lambda *_: "no graph")
    assert main(["--quick"]) == 0
    printed = capsys.readouterr().out
    assert "left out: no server here" in printed
    assert "1.00 (1.00 to 1.00)" in printed


ALWAYS = {"decorators", "postgres", "http", "keyed", "consumer-waits", "consumer-parts"}
"""One of each kind; the others run in the soak. P-T1, P-T2: these show that those on Spark run,
each with its own Spark; their measurements are on the page of benchmarks.
"""

BY_PYTHON = {"interpreters", "work", "imports", "consumer", "kafka", "kafka-keys"}


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[] if case.name in ALWAYS else [pytest.mark.soak])
        for case in CASES
    ],
)
def test_every_case_runs(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if case.name in BY_PYTHON:  # one of them is sufficient here
        monkeypatch.setattr("benchmarks.cases.interpreters.VERSIONS", ())
    if case.name == "accept":
        pytest.importorskip("opentelemetry.sdk")
    assert main(["--quick", "--case", case.name]) == 0
    printed = capsys.readouterr().out
    if "left out: " in printed:
        pytest.skip(printed.split("left out: ", 1)[1].strip())
    for target in case.targets:
        assert target.name in printed


def test_the_flame_graph_is_drawn(tmp_path: Path) -> None:
    target = tmp_path / "flame.svg"
    try:
        said = flame.draw(target, flame.QUICK_ITEMS)
    except CaseUnavailableError as reason:
        pytest.skip(str(reason))
    assert "samples" in said
    assert "adding_through_decorators" in target.read_text()


def test_the_flame_graph_of_the_docs_shows_files_that_exist() -> None:
    """`python -m benchmarks --case flame` regenerates it."""
    shown = {*re.findall(r"\((sluicegate/[\w/]+\.py)\b", flame.TARGET.read_text(encoding="utf-8"))}
    assert shown
    assert sorted(file for file in shown if not (SOURCE / file).exists()) == []
