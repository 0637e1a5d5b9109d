"""Alert rules as data."""

from __future__ import annotations

from importlib.resources import files

from .._core.public import publish

_FILES = ("alerts.yml", "consumer_alerts.yml", "stream_alerts.yml", "queue_alerts.yml")
"""The first begins the list of groups, and the others continue it."""


def alert_rules() -> str:
    """The rules file for Prometheus, as YAML text, with a group for batchers, one for consumers,
    one for logs of streams and one for queues: write it to a path in your `rule_files`, and adjust the thresholds
    to your limits.
    """
    folder = files("penstock.telemetry")
    return "".join([(folder / name).read_text(encoding="utf-8") for name in _FILES])


publish("penstock.telemetry", alert_rules)
