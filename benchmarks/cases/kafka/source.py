"""Kafka as a source: the cost of a record, compared with common ways to consume, by Python version."""

from __future__ import annotations

import contextlib
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from ...environments import environment
from ...harness import NS_PER_ITEM, Case, CaseUnavailableError, name_of, placed
from ...kafka.topics import a_broker, fill
from ...kafka.workloads import (
    ARROYO,
    ARROYO_BATCHES,
    BARE,
    FASTSTREAM,
    FASTSTREAM_BATCHES,
    OUR_WAYS,
    OURS,
    OURS_BATCHES,
    PYRALLEL,
    RECIPE,
    TOPIC,
    workloads,
)
from ...stopwatch import Clock
from ...workers import SOURCES, Worker
from ..interpreters import interpreters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...environments import Environment
    from ...harness import Contender, Results
    from ...stopwatch import Took

ITEMS = 100_000
KEYS = 1_000
PARTITIONS = 4
PYTHONS = ("3.11.", "3.12.")
"""The Python versions of the goals."""
PACKAGES = {
    FASTSTREAM: "faststream[kafka]",
    FASTSTREAM_BATCHES: "faststream[kafka]",
    ARROYO: "sentry-arroyo",
    ARROYO_BATCHES: "sentry-arroyo",
    PYRALLEL: "pyrallel-consumer",
}
"""The required peers."""


@contextlib.contextmanager
def members(
    bootstrap: str, *also: str, peers: Sequence[str] = (*dict.fromkeys(PACKAGES.values()),)
) -> Iterator[dict[str, tuple[Worker, Environment]]]:
    """Start a process of each interpreter for which the clients can be installed, in an environment
    that also has the peers.
    """
    try:
        needed = [f"{each}=={version(each)}" for each in ("aiokafka", *also)] + ["tenacity"]
    except ModuleNotFoundError as missing:
        raise CaseUnavailableError(str(missing)) from missing
    with contextlib.ExitStack() as opened:
        yield {
            f"Python {found}": _member(opened, executable, needed, peers, bootstrap)
            for found, executable in interpreters().items()
            if found.startswith(PYTHONS)
        }


def _member(
    opened: contextlib.ExitStack,
    executable: str,
    needed: Sequence[str],
    peers: Sequence[str],
    bootstrap: str,
) -> tuple[Worker, Environment]:
    made = opened.enter_context(environment(executable, needed, peers))
    worker = Worker(
        SOURCES, executable=made.executable, program="kafka.programs.consume", arguments=[bootstrap]
    )
    return opened.enter_context(worker), made


def take(worker: Worker, name: str, share: float) -> Took:
    """Make a turn of a workload."""
    took, _ = worker.turn(name, share)
    return took


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    share = min(1.0, count / ITEMS)
    with a_broker() as broker, members(broker.bootstrap) as processes:
        fill(broker, TOPIC, ITEMS, keys=KEYS, partitions=PARTITIONS)
        yield [
            placed(
                line,
                name,
                partial(take, worker, name, share),
                ours=name in OUR_WAYS,
                items=works[name].count(share),
                library=made.version(PACKAGES[name]) if name in PACKAGES else None,
            )
            for works in [workloads(broker.bootstrap)]
            for line, (worker, made) in processes.items()
            for name in (BARE, OURS, OURS_BATCHES, RECIPE, *PACKAGES)
            if name not in PACKAGES or made.has(PACKAGES[name])
        ]


def _ratios(results: Results) -> list[str]:
    """Format Sluicegate's processor time compared with each way, by Python version."""
    found: list[str] = []
    batches = {FASTSTREAM_BATCHES, ARROYO_BATCHES}
    for peer in (RECIPE, *PACKAGES):
        way = OURS_BATCHES if peer in batches else OURS
        ratios = [
            (line, results.ratio(name_of(line, way), name_of(line, peer)))
            for line in results.lines
            if name_of(line, peer) in results.figures
        ]
        told = [
            f"{each.median:.2f} x ({each.least:.2f} to {each.most:.2f}) with {line}"
            for line, each in ratios
        ]
        if told:
            found.append(f"{way}, against {peer}: {', '.join(told)}.")
    bare = [
        (line, results.ratio(name_of(line, BARE), name_of(line, OURS))) for line in results.lines
    ]
    told = [
        f"{each.median:.2f} x ({each.least:.2f} to {each.most:.2f}) with {line}"
        for line, each in bare
    ]
    return [*found, f"Sluicegate takes, of the time of the {BARE}: {', '.join(told)}."]


CASE = Case(
    name="kafka",
    title="Consume a topic of Kafka, by Python",
    prepare=prepare,
    items=ITEMS,
    quick_items=500,
    unit=NS_PER_ITEM,
    by=Clock.PROCESSOR,
    peers=(),
    along="work",
    is_drawn=False,
    notes=_ratios,
)
