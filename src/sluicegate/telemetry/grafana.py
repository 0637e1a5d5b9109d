"""Dashboards for Grafana, as generated from the tables of metrics into the folder `dashboards`."""

from __future__ import annotations

from importlib.resources import files

NAMES = ("batchers", "consumers", "queues", "streams")


def grafana_dashboards() -> dict[str, str]:
    """Return the dashboards for Grafana 10.1 and newer as JSON text by name: `batchers`, `consumers`
    (and pipes), `queues` and `streams`. Import them, or write them to a folder from which Grafana
    provisions dashboards.
    """
    folder = files("sluicegate.telemetry") / "dashboards"
    return {name: (folder / f"{name}.json").read_text(encoding="utf-8") for name in NAMES}
