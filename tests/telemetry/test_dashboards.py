"""The Grafana dashboards: made from the tables of metrics, and every query answered by Prometheus.

White box: the tables of metrics, and the program that makes the dashboards.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

pytest.importorskip("grafana_foundation_sdk")
pytest.importorskip("prometheus_client")
from prometheus_client import CollectorRegistry
from tests.docs.pages import ROOT
from tests.postgres.queues.jobs_help import insert
from tests.postgres.queues.operated_help import fail, operated
from tests.postgres.streams.served_help import subscribe
from tests.telemetry import test_alerts as batchers
from tests.telemetry import test_consumer_alerts as consumers
from tests.telemetry import test_queue_alerts as queues
from tests.telemetry import test_stream_alerts as streams
from tests.telemetry.dashboards import LAYOUTS, dashboard
from tests.telemetry.recorded import BEGIN, SECONDS, Prometheus, record, scraped, serving, with_all

from sluicegate.postgres import (
    PrometheusQueueObserver,
    PrometheusStreamObserver,
    QueueMonitor,
    StreamMonitor,
)
from sluicegate.telemetry import grafana_dashboards
from sluicegate.testing.servers.require import skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres.streams.log_help import Log

BOARDS = {name: json.loads(text) for name, text in grafana_dashboards().items()}
LABEL = re.compile(r"{{(\w+)}}")
ALERTS = {
    "batchers": (batchers, "BatcherQueueFilling", "info", "audit"),
    "consumers": (consumers, "ConsumerStalled", "critical", "c"),
    "queues": (queues, "QueueStandsStill", "warning", "shop"),
    "streams": (streams, "StreamLagging", "warning", "log"),
}
"""For each dashboard an alert: the module of its series, its severity and the name."""


def targets(board: dict[str, Any]) -> list[dict[str, Any]]:
    """The queries of a dashboard, that of the alerts first."""
    return [target for panel in board["panels"] for target in panel.get("targets", ())]


@pytest.fixture(scope="module")
def programs(promtool: str) -> Path:
    """The folder of Prometheus's programs."""
    folder = Path(promtool).parent
    if not (folder / "prometheus").exists():
        skip_or_fail("promtool", f"there is no prometheus beside {promtool}")
    return folder


@pytest.fixture(scope="module")
def prometheus(programs: Path) -> Iterator[Prometheus]:
    """A server with the scrapes of all exporters."""
    with serving(programs, record()) as server:
        yield server


def test_the_dashboards_are_made_from_the_tables() -> None:
    """Regenerate them with `make format`."""
    assert grafana_dashboards() == {name: dashboard(name) for name in LAYOUTS}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_metric_is_shown_and_exists(name: str) -> None:
    """Those of the dashboard's own table, once; names, labels and identifiers are unique."""
    layout, board = LAYOUTS[name], BOARDS[name]
    shown = [one for row in layout.rows.values() for panel in row.values() for one in panel]
    own = layout.catalogues[0]
    assert len(shown) == len({*shown})
    assert {metric.name for metric in (*own.metrics, *own.by_tenant)} <= {*shown}
    known = {
        metric.name + suffix
        for metric in layout.metrics.values()
        for suffix in {"counter": ["_total"], "histogram": ["_bucket", "_count"]}.get(
            metric.kind, [""]
        )
    }
    queries = [target["expr"] for target in targets(board)[1:]]
    queries += [each["query"] for each in board["templating"]["list"][1:]]
    for query in queries:
        named = re.findall(r"\b(?:batcher|consumer|source|stream|queue)_\w+", query)
        assert named
        assert {*named} <= known
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert {"name", "instance"} <= {each["name"] for each in board["templating"]["list"]}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_query_returns_the_series_of_its_legend(prometheus: Prometheus, name: str) -> None:
    """For all names and for one; a series has each label that its legend shows."""
    (chosen, *_), *_ = [
        prometheus.get(
            "label/name/values", **{"match[]": metric, "start": BEGIN, "end": BEGIN + SECONDS}
        )
        for metric in LAYOUTS[name].variables.values()
    ]
    others = 0
    for target in targets(BOARDS[name])[1:]:
        found = prometheus.series(target["expr"])
        assert found, target["expr"]
        for series in found:
            assert {*LABEL.findall(target["legendFormat"])} == {*series["metric"]}
        for series in prometheus.series(target["expr"].replace("$name", chosen)):
            assert series["metric"]["name"] == chosen
        others += any(series["metric"]["name"] != chosen for series in found)
        assert prometheus.series(target["expr"].replace("$instance", "elsewhere")) == []
    assert others or name in {"queues", "streams"}


@pytest.mark.usefixtures("real_clock")
async def test_monitors_of_a_real_schema_have_the_series(programs: Path, log: Log) -> None:
    """The figures above are made by hand."""
    registry, lines = CollectorRegistry(), list[str]()
    seen: Any = {"schema": log.schema, "name": "shop"}
    async with (
        operated(log) as (con, admin),
        log.connected() as other,
        QueueMonitor(log.dsn, observers=[PrometheusQueueObserver(registry)], **seen) as queue,
        StreamMonitor(log.dsn, observers=[PrometheusStreamObserver(registry)], **seen) as stream,
    ):
        await admin.create("mails", poison="skip", max_attempts=1)
        await admin.create("sticky", sticky=True)
        await insert(con, log, "mails", *((f"k{n}", n) for n in range(3)))
        assert await fail(con, log, "mails") == "dead"
        await con.fetch(f"SELECT {log.sql}.seen_consumer('sticky', 'g', 'one', 60)")
        await subscribe(log, con, "all", 0)
        await con.execute(
            f"INSERT INTO {log.sql}.subscription_member VALUES ('all', 'm', now()); "
            f"UPDATE {log.sql}.subscription_slot SET epoch = 1; "
            f"INSERT INTO {log.sql}.parked (consumer, key, queue, place, record) "
            "VALUES ('c', '\"k\"', 'k', 'p', '{}')"
        )
        await log.append(con, "order-1", *range(6))
        appending = other.transaction()
        await appending.start()
        await log.append(other, "order-2", 1)
        for at in (0, 15, 30):
            await queue.poll()
            await stream.poll()
            lines.extend(scraped(registry, at))
        await appending.rollback()
    with serving(programs, "".join(lines) + "# EOF\n") as server:
        for target in (*targets(BOARDS["queues"])[1:], *targets(BOARDS["streams"])[1:]):
            assert server.series(target["expr"]), target["expr"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_variable_has_values(prometheus: Prometheus, name: str) -> None:
    for variable in BOARDS[name]["templating"]["list"][1:]:
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
        assert match is not None
        assert match[2] == variable["name"]
        chosen = {"match[]": with_all(match[1]), "start": BEGIN, "end": BEGIN + SECONDS}
        assert prometheus.get(f"label/{match[2]}/values", **chosen)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_firing_alert_is_shown(promtool: str, tmp_path: Path, name: str) -> None:
    module, alert, severity, about = ALERTS[name]
    labels = f'{{alertname="{alert}", severity="{severity}", name="{about}"}}'
    case = consumers.scenario(module.HEALTHY | module.ILL[alert])
    query = with_all(targets(BOARDS[name])[0]["expr"])
    case["promql_expr_test"] = [
        {"expr": query, "eval_time": "50m", "exp_samples": [{"labels": labels, "value": 1}]}
    ]
    recorded = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": [case]}
    batchers.check_rules(promtool, tmp_path, yaml.safe_dump(recorded))


def test_the_page_shows_every_dashboard() -> None:
    page = (ROOT / "docs" / "how-to" / "watch-with-prometheus.md").read_text()
    shown = re.findall(r"\(\.\./assets/dashboards/(\w+)\.svg\)", page)
    assert shown == [*LAYOUTS]
