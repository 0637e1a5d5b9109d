"""Files of data: the alert rules, and the dashboards, as generated from the tables of metrics."""

from __future__ import annotations

from importlib.resources import files

NAMES = ("batchers", "consumers", "queues", "streams")


def alert_rules() -> str:
    """Return the rules file for Prometheus as YAML text, with one group each for batchers,
    consumers, logs of streams and queues. Write it to a path in your `rule_files`, and adjust the
    thresholds to your limits.
    """
    return (files("sluicegate.telemetry") / "alerts.yml").read_text(encoding="utf-8")


def grafana_dashboards() -> dict[str, str]:
    """Return the dashboards for Grafana 10.1 and newer as JSON text by name: `batchers`, `consumers`
    (and pipes), `queues` and `streams`. Import them, or write them to a folder from which Grafana
    provisions dashboards.
    """
    folder = files("sluicegate.telemetry") / "dashboards"
    return {name: (folder / f"{name}.json").read_text(encoding="utf-8") for name in NAMES}
