"""Each drill of the runbook: the right alerts fire in time and clear, and no event is lost.

Prometheus' own evaluation of the rules judges the metrics that a drill recorded, at the times of the
incident.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import re
from typing import TYPE_CHECKING

import pytest
import yaml

pytest.importorskip("asyncpg")
from examples.drills import NAMES, lock, slow
from examples.drills.drill import SCRAPE, Drill
from tests.docs.pages import ROOT
from tests.telemetry.test_alerts import check_rules

from sluicegate.testing import embedded_postgres
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from sluicegate.testing import EmbeddedPostgres

FIRING = 'count by (alertname) (ALERTS{alertstate="firing",name="audit"'
SEEN = {
    "lock": [
        "in flight 10/10",
        "waits: ",
        "holds: ",
        "500 of 1000",
        "1000 of 1000",
        "answered 503: ",
    ],
    "outage": ["destination unavailable", "Connect call failed", "available again"],
    "refusal": ["to repair: grant INSERT on table", "available again"],
    "poison": ["constraint 'known'", "replayed: ", "missing 0"],
    "slow": ["in flight 2/2", "PgSleep"],
    "disk": ["to repair: raise the limit", "available again"],
    "black_hole": ["cut off after", "available again"],
}
"""Parts of the timeline of each drill, which the runbook explains."""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A server of its own: drills stop and freeze it."""
    with there_or_skip("postgres", embedded_postgres({"fsync": "off"})) as server:
        yield server


@pytest.mark.parametrize("name", NAMES)
def test_a_drill(
    name: str,
    server: EmbeddedPostgres,
    promtool: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = importlib.import_module(f"examples.drills.{name}")
    drill = Drill(server, tmp_path)
    assert asyncio.run(module.run(drill)) == set()
    told = capsys.readouterr().out
    assert [part for part in SEEN[name] if part not in told] == []
    assert "complete after" in told
    check_rules(promtool, tmp_path, recorded(drill, module.ALERTS))


def recorded(drill: Drill, alerts: Mapping[str, int]) -> str:
    """A test of the rules on the record: the alerts at the end of the trouble, and none afterwards."""
    scrapes = {math.ceil(at / SCRAPE): values for at, values in drill.record}
    last = max(scrapes)

    def expect(at: float, *names: str, only: str = ',severity!="info"') -> object:
        samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names]
        time = f"{int(at // SCRAPE) * SCRAPE}s"
        return {"expr": f"{FIRING}{only}}})", "eval_time": time, "exp_samples": samples}

    cases = [expect(drill.broken), expect(last * SCRAPE)]
    for name, minute in alerts.items():
        only = f',alertname="{name}"'
        cases.append(expect(drill.broken + 60 * minute, name, only=only))
        cases.append(expect(last * SCRAPE, only=only))
    loud = [name for name in alerts if name != "BatcherQueueFilling"]
    cases.append(expect(drill.diagnosed, *loud))
    series = {name for values in scrapes.values() for name in values}
    courses = {
        name: " ".join(str(scrapes.get(at, {}).get(name, "_")) for at in range(last + 1))
        for name in sorted(series)
    }
    case = {
        "interval": f"{SCRAPE}s",
        "input_series": [{"series": each, "values": course} for each, course in courses.items()],
        "promql_expr_test": cases,
    }
    rules = {"rule_files": ["alerts.yml"], "evaluation_interval": f"{SCRAPE}s", "tests": [case]}
    return yaml.safe_dump(rules)


def test_the_page_shows_the_queries_of_the_drills() -> None:
    page = (ROOT / "docs" / "how-to" / "runbook.md").read_text()
    queries = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    assert queries == [lock.WAITING, lock.HOLDERS, slow.BUSY]
    assert set(re.findall(r"`(\w+)`", re.findall(r"\| drills \|.*?\n\n", page, re.DOTALL)[0])) >= {
        *NAMES
    }
