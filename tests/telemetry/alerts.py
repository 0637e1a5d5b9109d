"""The alert rules as rows, by the table of metrics that they are about.

White box: the tables of metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import yaml

from sluicegate.telemetry import alert_rules

if TYPE_CHECKING:
    from sluicegate.telemetry.metric import Catalogue


class Alert(NamedTuple):
    name: str
    level: str
    condition: str
    summary: str
    runbook: str


def alerts_of(catalogue: Catalogue) -> list[Alert]:
    groups = {group["name"]: group["rules"] for group in yaml.safe_load(alert_rules())["groups"]}
    own = "" if catalogue.name == "batcher" else f"-{catalogue.name}"
    return [
        Alert(
            rule["alert"],
            rule["labels"]["severity"],
            rule["expr"],
            rule["annotations"]["summary"].removeprefix("{{ $labels.name }}: "),
            rule["annotations"].get("runbook", ""),
        )
        for rule in groups.get(f"sluicegate{own}", ())
    ]
