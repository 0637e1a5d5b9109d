"""The adaptive batcher under ten loads, on virtual time, with the published ranges. The scenarios
are those of a benchmark.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks.simulation import Destination, Sample, Scenario, simulate
from tests.examples.example import DOCS, printed_on

from benchmarks import adaptive_scenarios
from sluicegate import Limits
from sluicegate.batcher import Adaptive

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from benchmarks.simulation import Simulated

PAGE = "explanation/when-to-batch.md"
PICTURES = DOCS / "assets" / "adaptive"


@pytest.fixture(scope="module")
def program() -> Any:
    return adaptive_scenarios


@dataclass(frozen=True)
class Expected:
    """Expected ranges of the samples of some seconds."""

    start: float
    end: float
    workers: tuple[float, float]
    """Range of the mean."""
    max_items: tuple[float, float]
    """Range of every sample."""
    written: tuple[float, float]
    """Range of the mean, in items per second."""


ORDINARY = (2_850.0, 3_100.0)
FULL = (200, 200)
EXPECTED = [
    ("steady", Expected(2, 40, (2, 4), FULL, ORDINARY)),
    ("knee", Expected(5, 40, (9, 20), FULL, (15_000, 19_000))),
    ("halved", Expected(5, 20, (4, 12), FULL, (9_800, 10_200))),
    ("halved", Expected(25, 40, (3, 9), FULL, (4_900, 5_100))),
    ("queue", Expected(5, 15, (8, 16), FULL, (13_500, 16_500))),
    ("queue", Expected(20, 25, (2, 10), FULL, (3_600, 4_100))),
    ("queue", Expected(30, 40, (8, 16), FULL, (13_500, 16_500))),
    ("throttled", Expected(5, 40, (7, 9), (25, 200), (12_000, 16_000))),
    ("timeouts", Expected(5, 10, (2, 4), FULL, ORDINARY)),
    ("timeouts", Expected(20, 25, (1, 1), (10, 100), (0, 300))),
    ("timeouts", Expected(35, 40, (4, 24), (150, 200), ORDINARY)),
    ("too-large", Expected(15, 40, (1, 16), (20, 70), (1_450, 1_550))),
    ("tenfold", Expected(1, 10, (1, 2), FULL, (550, 650))),
    ("tenfold", Expected(12, 20, (4, 8), FULL, (5_800, 6_200))),
    ("tenfold", Expected(31, 40, (4, 8), FULL, (5_800, 6_200))),
    ("idle", Expected(5, 14, (5, 9), FULL, (5_800, 6_200))),
    ("idle", Expected(26, 40, (5, 9), FULL, (5_800, 6_200))),
    ("one-error", Expected(2, 40, (2, 4), FULL, ORDINARY)),
]
CASES = list(dict.fromkeys(name for name, _ in EXPECTED))


ALWAYS = {"halved", "throttled", "timeouts", "idle"}
"""The loads of `make test`, in which both workers and sizes change; `make long` takes all."""


def of_all(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in ALWAYS else pytest.mark.long) for name in names]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(
            name,
            expected,
            id=f"{name}-{expected.start}-{expected.end}",
            marks=[] if name in ALWAYS else pytest.mark.long,
        )
        for name, expected in EXPECTED
    ],
)
def test_each_load_keeps_to_its_ranges(program: Any, name: str, expected: Expected) -> None:
    """B-T29, batcher/4a.11, batcher/4b.13."""
    samples = program.run(name, adaptive=True).between(expected.start, expected.end)
    assert expected.workers[0] <= mean(samples, "workers") <= expected.workers[1]
    assert expected.written[0] <= mean(samples, "written") <= expected.written[1]
    sizes = {sample.max_items for sample in samples}
    assert expected.max_items[0] <= min(sizes) <= max(sizes) <= expected.max_items[1]


def as_rows() -> list[str]:
    """The ranges as the page shows them."""

    def between(ends: tuple[float, float]) -> str:
        return f"{ends[0]:,g}" if ends[0] == ends[1] else f"{ends[0]:,g} to {ends[1]:,g}"

    return [
        f"| {name} | {between((one.start, one.end))} | {between(one.workers)} | "
        f"{between(one.max_items)} | {between(one.written)} |"
        for name, one in EXPECTED
    ]


def test_the_page_has_the_ranges() -> None:
    """batcher/4b.13: they are published."""
    page = (DOCS / PAGE).read_text()
    assert "\n".join(["|---|---|---|---|---|", *as_rows(), ""]) in page


def mean(samples: list[Sample], name: str) -> float:
    values: list[float] = [getattr(sample, name) for sample in samples]
    return sum(values) / len(values)


def failed(seen: Simulated) -> int:
    return seen.writes.total() - seen.writes["ok"]


@pytest.mark.parametrize("name", of_all(CASES))
def test_every_item_is_accounted_for(program: Any, name: str) -> None:
    """batcher/4b.1: also while sizes and workers change."""
    tally = program.run(name, adaptive=True).tally
    tally.verify()
    assert tally.inside == 0


def test_a_flood_of_timeouts_is_not_made_worse(program: Any) -> None:
    """B-T29: fewer writes time out than with fixed limits, fewer items are given up, and afterwards
    all traffic is carried again.
    """
    adaptive, fixed = (program.run("timeouts", adaptive=kind) for kind in (True, False))
    assert adaptive.writes["cut_off"] * 10 < fixed.writes["cut_off"]
    assert adaptive.tally.unknown * 10 < fixed.tally.unknown
    in_trouble = [sample.writing for sample in adaptive.between(15, 25)]
    assert max(in_trouble) <= 2


def trouble(seed: int) -> Scenario:
    """Six seconds in which writes time out, with a cause and a load chosen by the seed, after all
    workers were in use.
    """
    chance = random.Random(seed)
    usual = Destination(seconds=0.05, per_item=0.00025, jitter=chance.choice((0.05, 0.5)))
    bad = chance.choice(
        (
            replace(usual, per_item=0.00025 * chance.uniform(20, 80)),
            replace(usual, seconds=chance.uniform(0.8, 3)),
            replace(usual, seconds=0.3, servers=chance.randint(1, 2)),
            replace(usual, seconds=60.0),
        )
    )
    return Scenario(
        destination=((0.0, usual), (3.0, bad), (9.0, usual)),
        traffic=((0.0, chance.choice((2_000.0, 6_000.0, 20_000.0))),),
        limits=Limits(max_items=200, workers=16, max_pending_items=8000),
        adaptive=Adaptive(start_workers=16),
        seconds=11.0,
        seed=seed,
    )


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 40))]
)
def test_no_flood_of_timeouts_is_made_worse(seed: int) -> None:
    """B-T29: in any flood there are no more concurrent writes than with fixed limits, no more
    writes cut off, and no more items resent.
    """
    scenario = trouble(seed)
    adaptive, fixed = simulate(scenario), simulate(replace(scenario, adaptive=None))
    assert fixed.resent > 0
    assert adaptive.resent <= fixed.resent
    assert adaptive.writes["cut_off"] <= fixed.writes["cut_off"]
    assert adaptive.tally.unknown <= fixed.tally.unknown
    for seen, other in zip(adaptive.between(4.0, 9.0), fixed.between(4.0, 9.0), strict=True):
        assert seen.writing <= max(other.writing, other.workers)
        assert seen.writing <= 16


@pytest.mark.long
def test_what_it_is_for(program: Any) -> None:
    """If fixed limits overload the destination, it writes more and fewer items fail; otherwise it
    costs nothing.
    """
    for name in ("knee", "halved", "throttled"):
        adaptive, fixed = (program.run(name, adaptive=kind) for kind in (True, False))
        assert mean(adaptive.samples, "written") > 1.3 * mean(fixed.samples, "written")
        assert failed(adaptive) <= failed(fixed)
    for name in ("steady", "tenfold", "idle", "one-error", "too-large"):
        adaptive, fixed = (program.run(name, adaptive=kind) for kind in (True, False))
        assert mean(adaptive.samples, "written") > 0.99 * mean(fixed.samples, "written")


def test_an_idle_time_changes_nothing(program: Any) -> None:
    """batcher/4a.11: frozen while idle."""
    seen = program.run("idle", adaptive=True)
    (last,) = {(sample.workers, sample.max_items) for sample in seen.between(13.0, 15.0)}
    assert {(sample.workers, sample.max_items) for sample in seen.between(15.0, 25.0)} == {last}


@pytest.mark.long
def test_the_page_shows_what_the_program_prints(
    program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program.main()
    assert capsys.readouterr().out in printed_on(PAGE)


def test_each_load_has_a_range(program: Any) -> None:
    assert {*program.CASES} == {*CASES}


@pytest.mark.parametrize("name", of_all(["halved", "knee"]))
def test_a_picture_is_of_its_run(program: Any, name: str) -> None:
    """batcher/4b.13: the same scenario gives the same run, to the last digit. Each plot contains
    the digest of its run; `python -m benchmarks.adaptive_scenarios --plots docs/assets/adaptive`
    draws them.
    """
    assert program.run(name, adaptive=True).digest in (PICTURES / f"{name}.svg").read_text()


@pytest.mark.long
def test_a_picture_is_drawn(program: Any, tmp_path: Path) -> None:
    """The import of matplotlib takes most of its time."""
    pytest.importorskip("matplotlib")
    seen = simulate(replace(program.CASES["steady"].scenario, seconds=1.0))
    seen.plot(tmp_path / "steady.svg", "Steady")
    assert (tmp_path / "steady.svg").read_text().startswith("<?xml")
    seen.plot(str(tmp_path / "steady.png"))
    assert (tmp_path / "steady.png").read_bytes().startswith(b"\x89PNG")
