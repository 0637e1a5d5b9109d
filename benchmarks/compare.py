"""This checkout compared with another revision: `python -m benchmarks.compare REVISION`.

Two processes, one with each version of the library, take turns at workloads of this checkout, and
each turn's processor time is compared with its neighbour's. Many short turns are more informative
than a few long ones: other work on the machine disturbs only some of them. A workload is slower if
both the median of these ratios and the ratio of the fastest quarters exceed the limit. If only one
of them does, the workload is measured again in new processes, since the memory layout of a process
can be unfavourable for its whole life; the middle measurement counts.

Exit status: 0 if no workload is slower, 1 if one is, 2 if the comparison could not be made.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from .arguments import positive
from .destination import postgres_server
from .end_to_end import COMPARED, WITH_POSTGRES, with_server
from .harness import CaseUnavailableError
from .revisions import UnknownRevisionError, sources_of
from .tables import aligned
from .workers import ROOT, SOURCES, Worker, WorkloadRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

ROUNDS = 32
SHARE = 0.25
"""Share of a workload's items; a turn takes about ten milliseconds."""
AGAIN = 2
"""Number of further measurements of a workload that seems slower."""
ALLOWED = 5.0
"""Allowed increase of processor time over the other revision, in per cent."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Processor time of neighbouring turns, in seconds per item."""

    here: Sequence[float]
    there: Sequence[float]

    @property
    def median(self) -> float:
        """The median of the ratios of neighbours, here to there."""
        return statistics.median(
            here / there for here, there in zip(self.here, self.there, strict=True)
        )

    @property
    def least(self) -> float:
        """The ratio of the least disturbed turns, the fastest quarter of each."""
        return _fastest(self.here) / _fastest(self.there)

    def is_slower(self, allowed: float) -> bool:
        """Return whether this checkout takes over `allowed` per cent more."""
        return min(self.median, self.least) > 1 + allowed / 100

    def seems_slower(self, allowed: float) -> bool:
        """Return whether one of the two ratios is above the limit."""
        return max(self.median, self.least) > 1 + allowed / 100


def _fastest(times: Sequence[float]) -> float:
    return statistics.mean(sorted(times)[: max(1, len(times) // 4)])


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one workload: `pairs` of each measurement, or the reason why there is none."""

    name: str
    pairs: Sequence[Pairs]
    refused: str = ""

    @property
    def typical(self) -> Pairs:
        """The middle one of several measurements."""
        return sorted(self.pairs, key=lambda pairs: min(pairs.median, pairs.least))[
            len(self.pairs) // 2
        ]

    def is_slower(self, allowed: float) -> bool:
        """Return whether this checkout takes over `allowed` per cent more."""
        return bool(self.pairs) and self.typical.is_slower(allowed)

    def said(self, allowed: float) -> str:
        """The verdict as text."""
        if self.refused:
            return f"left out: {self.refused}"
        judged = "SLOWER" if self.is_slower(allowed) else "ok"
        times = len(self.pairs)
        return judged if times == 1 else f"{judged}, measured {times} times"


Measure = Callable[[str], Pairs]
"""Measures all rounds of the workload with this name."""


def judge(name: str, measures: Iterable[Measure], allowed: float) -> Verdict:
    """Measure once, and if the workload seems slower, with all other measures."""
    pairs: list[Pairs] = []
    for measure in measures:
        try:
            pairs.append(measure(name))
        except WorkloadRefusedError as refusal:
            return Verdict(name, (), str(refusal))
        if len(pairs) == 1 and not pairs[0].seems_slower(allowed):
            break
    return Verdict(name, pairs)


def measure(here: Worker, there: Worker, name: str, *, rounds: int, share: float) -> Pairs:
    """Run a round that is not counted, then `rounds` in which the two alternate in going first.
    Raises `WorkloadRefusedError` if the other revision cannot run it, `CaseUnavailableError` if
    this checkout cannot.
    """
    try:
        here.turn(name, share)
    except WorkloadRefusedError as refusal:
        raise CaseUnavailableError(f"this checkout cannot do {name!r}: {refusal}") from refusal
    times: dict[Worker, list[float]] = {here: [], there: []}
    for number in range(rounds + 1):
        for worker in (here, there) if number % 2 else (there, here):
            took, items = worker.turn(name, share)
            if number:
                times[worker].append(took.processor / items)
    return Pairs(times[here], times[there])


def compare(
    sources: Path, names: Sequence[str], *, rounds: int, share: float, allowed: float
) -> Iterator[Verdict]:
    """Run the workloads with the library of this checkout and the one in `sources`."""
    with contextlib.ExitStack() as opened:
        environment: dict[str, str] = {}
        if not WITH_POSTGRES.keys().isdisjoint(names):
            environment = with_server(opened.enter_context(postgres_server()))
        worker = partial(Worker, program="programs.end_to_end", environment=environment)
        here, there = (opened.enter_context(worker(each)) for each in (SOURCES, sources))

        def among_others(name: str) -> Pairs:
            return measure(here, there, name, rounds=rounds, share=share)

        def in_new_processes(name: str) -> Pairs:
            with worker(SOURCES) as here, worker(sources) as there:
                return measure(here, there, name, rounds=rounds, share=share)

        for name in names:
            yield judge(name, (among_others, *[in_new_processes] * AGAIN), allowed)


HEAD = ["", "here, us", "there, us", "median of ratios", "fastest quarters", ""]


def row_of(verdict: Verdict, allowed: float) -> list[str]:
    """Format a verdict as a row: times per item, and ratios of here to there."""
    pairs = verdict.typical
    return [
        verdict.name,
        f"{statistics.median(pairs.here) * 1e6:,.3f}",
        f"{statistics.median(pairs.there) * 1e6:,.3f}",
        f"{pairs.median:.3f}",
        f"{pairs.least:.3f}",
        verdict.said(allowed),
    ]


def main(arguments: Sequence[str] | None = None, repository: Path = ROOT) -> int:
    """Compare the selected workloads with a revision of `repository`; return the exit status."""
    options = _parser().parse_args(arguments)
    names = options.case or list(COMPARED)
    verdicts: list[Verdict] = []
    try:
        with sources_of(options.revision, repository) as sources:
            asked = {"rounds": options.rounds, "share": options.share, "allowed": options.allow}
            for verdict in compare(sources, names, **asked):
                print(f"{verdict.name}: {verdict.said(options.allow)}", flush=True)
                verdicts.append(verdict)
    except (UnknownRevisionError, CaseUnavailableError) as reason:
        print(f"cannot compare: {reason}", file=sys.stderr)
        return 2
    rows = [HEAD, *(row_of(verdict, options.allow) for verdict in verdicts if verdict.pairs)]
    print(f"\nprocessor time per item, this checkout (here) and {options.revision} (there)")
    print("\n".join(line.rstrip() for line in aligned(rows)))
    slower = [verdict.name for verdict in verdicts if verdict.is_slower(options.allow)]
    if slower:
        print(f"\nmore than {options.allow:g} % slower: {'; '.join(slower)}")
    return 1 if slower else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench-compare REV=<revision>",
        description="Compare this checkout with another revision.",
    )
    parser.add_argument("revision", help="a commit, branch or tag")
    parser.add_argument(
        "--case", action="append", choices=list(COMPARED), help="only this; may be repeated"
    )
    parser.add_argument(
        "--rounds",
        type=positive(int),
        default=ROUNDS,
        help=f"rounds after one that is not counted (default {ROUNDS})",
    )
    parser.add_argument(
        "--share",
        type=positive(float),
        default=SHARE,
        help=f"share of each workload's items in a turn (default {SHARE:g})",
    )
    parser.add_argument(
        "--allow",
        type=positive(float),
        default=ALLOWED,
        help=f"tolerated increase of processor time, in per cent (default {ALLOWED:g})",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
