"""Alert rules as data."""

from __future__ import annotations

from importlib.resources import files

from .._core.public import publish

_FILES = ("alerts.yml", "consumer_alerts.yml", "stream_alerts.yml", "queue_alerts.yml")
"""The first file begins the list of groups; the others continue it."""


def alert_rules() -> str:
    """Return the rules file for Prometheus as YAML text, with one group each for batchers,
    consumers, logs of streams and queues. Write it to a path in your `rule_files`, and adjust the
    thresholds to your limits.
    """
    folder = files("sluicegate.telemetry")
    return "".join([(folder / name).read_text(encoding="utf-8") for name in _FILES])


publish("sluicegate.telemetry", alert_rules)
