"""Alert rules as data."""

from __future__ import annotations

from importlib.resources import files

from .._core.public import publish


def alert_rules() -> str:
    """The rules file for Prometheus, as YAML text: write it to a path in your `rule_files`, and
    adjust the thresholds to your limits.
    """
    return (files("penstock.telemetry") / "alerts.yml").read_text(encoding="utf-8")


publish("penstock.telemetry", alert_rules)
