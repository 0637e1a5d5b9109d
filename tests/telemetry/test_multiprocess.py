"""Prometheus's multiprocess mode: every family of a single process, with correct sums, from forked
workers that start and end.

White box: the table of metrics.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("prometheus_client")
from prometheus_client import CollectorRegistry
from tests.telemetry.scenes import EVERY_ALERT, every_state

from sluicegate.telemetry import PrometheusObserver, alert_rules
from sluicegate.telemetry.batcher_metrics import BATCHER, TENANT_PENDING_ITEMS
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks its workers")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

PROGRAM = """
import asyncio, json, logging, os, signal
logging.disable()
from prometheus_client import CollectorRegistry, multiprocess, values
values.ValueClass = values.MultiProcessValue(lambda: os.environ.get("WORKER", os.getpid()))
from sluicegate.telemetry import PrometheusObserver
from sluicegate import Batcher
from sluicegate.testing import FakeClock
from tests.telemetry.scenes import every_state
from tests.telemetry.test_multiprocess import samples_of

async def discard(items):
    pass

async def work(clock, told, orders):
    async with every_state(clock, lambda: [PrometheusObserver(tenants=2)]) as batchers:
        tallies = {name: batcher.tally().accepted for name, batcher in batchers.items()}
        os.write(told, json.dumps(tallies).encode())
        os.read(orders, 1)

def worker(identity=None):
    told, orders = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        if identity:
            os.environ["WORKER"] = str(identity)
        with FakeClock() as clock:
            clock.run(work(clock, told[1], orders[0]))
            assert not clock.leftovers(), clock.leftovers()
        os._exit(0)
    return pid, orders[1], json.loads(os.read(told[0], 10_000))

def scrape():
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    scrapes.append(samples_of(registry.collect()))

async def open_early():
    batcher = Batcher(discard, name="master", observers=[PrometheusObserver()])
    await batcher.__aenter__()
    await batcher.add_many(range(3))
    await batcher.flush()
    await asyncio.sleep(2)
    return batcher

scrapes = []
early = FakeClock()
master = early.run(open_early())
first, second = worker(), worker()
scrape()
os.kill(first[0], signal.SIGKILL)
os.waitpid(first[0], 0)
multiprocess.mark_process_dead(first[0])
scrape()
third = worker(first[0])
scrape()
for pid, orders, _ in (second, third):
    os.write(orders, b"x")
    assert os.waitpid(pid, 0)[1] == 0
scrape()
early.run(master.shutdown())
early.close()
print(json.dumps({"tallies": [first[2], second[2], third[2]], "scrapes": scrapes}))
"""


def samples_of(families: Iterable[Any]) -> list[Any]:
    """The families as JSON: name, type, help, and the samples except creation times."""
    return [
        [
            family.name,
            family.type,
            [
                [sample.name, sample.labels, sample.value]
                for sample in family.samples
                if not sample.name.endswith("_created")
            ],
        ]
        for family in families
    ]


def values(scrape: list[Any], *, of_master: bool = False) -> Samples:
    """The samples without those of the forking process, or only those."""
    return {
        (name, frozenset(labels.items())): value
        for _, _, samples in scrape
        for name, labels, value in samples
        if (labels["name"] == "master") == of_master
    }


def families(scrape: list[Any]) -> dict[str, tuple[str, frozenset[str]]]:
    """Type and labels of each family."""
    return {
        name: (kind, frozenset(label for _, labels, _ in samples for label in labels) - {"le"})
        for name, kind, samples in scrape
    }


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": f"{root}:{root / 'src'}:{os.environ.get('PYTHONPATH', '')}",
            "PROMETHEUS_MULTIPROC_DIR": str(tmp_path_factory.mktemp("multiprocess")),
        },
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def alone() -> Iterator[list[Any]]:
    """The same batchers in a single process, scraped as usual."""
    registry = CollectorRegistry()

    async def main() -> list[Any]:
        async with every_state(clock, lambda: [PrometheusObserver(registry, tenants=2)]):
            return samples_of(registry.collect())

    with FakeClock() as clock:
        yield clock.run(main())


def greatest() -> set[str]:
    return {each.name for each in BATCHER.metrics if each.kind == "max"}


def test_two_workers_show_every_family_with_the_sums_of_both(
    told: Mapping[str, Any], alone: list[Any]
) -> None:
    """Each sample of the single process is present, with twice the value except for maxima."""
    scrape = told["scrapes"][0]
    assert families(scrape) == families(alone)
    expected = {
        (name, labels): value * (1 if name in greatest() else 2)
        for (name, labels), value in values(alone).items()
    }
    found = values(scrape)
    late = {key for key in found if key[0].endswith("oldest_age_seconds")}
    assert found == {
        key: pytest.approx(value, abs=1.0) if key in late else pytest.approx(value)
        for key, value in expected.items()
    }


def test_totals_are_the_tallies_of_all_workers_and_states_those_of_the_living(
    told: Mapping[str, Any], alone: list[Any]
) -> None:
    """The totals of a killed worker stay, its states are removed; a worker that gets its id
    continues the counts in its file.
    """
    tallies = told["tallies"]
    single = values(alone)
    gauges = {each.name for each in (*BATCHER.states, TENANT_PENDING_ITEMS)}
    for scrape, counted, living in zip(told["scrapes"], (2, 2, 3, 3), (2, 1, 2, 0), strict=True):
        found = values(scrape)
        for name in tallies[0]:
            key = ("batcher_enqueued_total", frozenset({("name", name)}))
            assert found[key] == sum(tally[name] for tally in tallies[:counted])
        for key in single:
            if key[0] in gauges - greatest():
                assert found[key] == single[key] * living, key


def test_a_batcher_that_is_open_while_workers_are_forked_is_counted_once(
    told: Mapping[str, Any],
) -> None:
    """A child's copy of the batcher and of its observer exports nothing."""
    for scrape in told["scrapes"]:
        found = values(scrape, of_master=True)
        for name in ("batcher_enqueued_total", "batcher_batch_size_items_sum"):
            assert found[name, frozenset({("name", "master")})] == 3
        assert found["batcher_queue_capacity_items", frozenset({("name", "master")})] > 0


def test_every_alert_fires_on_the_output_of_two_workers(
    told: Mapping[str, Any], promtool: str, tmp_path: Path
) -> None:
    """Gauges as scraped, and counters that grow by their value (times 50,000) each minute."""
    lines = []
    for _, kind, samples in told["scrapes"][0]:
        for name, labels, value in samples:
            told_labels = ",".join(f'{label}="{text}"' for label, text in labels.items())
            course = f"{value}x60" if kind == "gauge" else f"0+{value * 50_000}x60"
            lines.append(f"      - {{series: '{name}{{{told_labels}}}', values: '{course}'}}")
    expected = [
        f'      - {{expr: \'count(ALERTS{{alertstate="firing",alertname="{alert}",'
        f"name=\"{name}\"}})', eval_time: 55m, exp_samples: [{{labels: '{{}}', value: 1}}]}}"
        for alert, name in EVERY_ALERT.items()
    ]
    (tmp_path / "alerts.yml").write_text(alert_rules())
    (tmp_path / "recorded.yml").write_text(
        "\n".join(
            [
                "rule_files: [alerts.yml]",
                "evaluation_interval: 1m",
                "tests:",
                "  - interval: 1m",
                "    input_series:",
                *lines,
                "    promql_expr_test:",
                *expected,
            ]
        )
    )
    assert alert_rules().count("- alert: Batcher") == len(EVERY_ALERT)
    done = subprocess.run(
        [promtool, "test", "rules", "recorded.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
