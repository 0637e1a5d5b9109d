"""The alert rules of consumers: they refer to existing metrics, and fire when they should.

White box: the table of metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml
from tests.telemetry.alerts import alerts_of
from tests.telemetry.test_alerts import check_rules

from sluicegate.telemetry.consumer_metrics import CONSUMER

if TYPE_CHECKING:
    from pathlib import Path

HEALTHY = {
    "consumer_stalled{name='c'}": "0x60",
    "source_lag{name='c',topic='t',partition='0'}": "0+1x10 20000x50",  # a burst that ends
    "source_lag{name='c',topic='t',partition='1'}": "50000-500x60",
    "source_oldest_age_seconds{name='c',topic='t',partition='0'}": "30x60",
    "consumer_head_age_seconds{name='c',topic='t',partition='0'}": "5x60",
    "consumer_messages{name='c',place='blocked'}": "0x60",
    "consumer_messages{name='c',place='running'}": "100x60",
    "consumer_parked_keys{name='c'}": "0x60",
    "consumer_letters_total{name='c'}": "0x20 1x40",  # one letter in an hour
    "source_term_total{name='c',fate='terminated'}": "0x60",
    "source_term_total{name='c',fate='dead_lettered'}": "0x20 1x40",
    "source_failed_total{name='c'}": "0+1x60",  # an occasional failure
    "source_commits_total{name='c'}": "0+60x60",
    "consumer_map_cut{name='c',topic='t',partition='0'}": "0x60",
    "consumer_deaf_total{name='c'}": "0x60",
    "consumer_state{name='c',state='ready'}": "1x60",
    "consumer_state{name='c',state='not_ready'}": "0x60",
    "consumer_state{name='c',state='opening'}": "0x60",
}
ILL = {
    "ConsumerStalled": {"consumer_stalled{name='c'}": "1x60"},
    "ConsumerLagGrowing": {
        "source_lag{name='c',topic='t',partition='0'}": "10000+120x60",
        "source_lag{name='c',topic='t',partition='1'}": "10x60",
    },
    "ConsumerBehind": {"source_oldest_age_seconds{name='c',topic='t',partition='0'}": "0+60x60"},
    "ConsumerPositionStands": {
        "consumer_head_age_seconds{name='c',topic='t',partition='0'}": "0+60x60"
    },
    "ConsumerKeysBlocked": {"consumer_messages{name='c',place='blocked'}": "0x30 2x30"},
    "ConsumerKeysParked": {"consumer_parked_keys{name='c'}": "1x60"},
    "ConsumerDeadLetters": {"consumer_letters_total{name='c'}": "0+60x60"},
    "ConsumerGivesUp": {"source_term_total{name='c',fate='terminated'}": "0x45 1x15"},
    "ConsumerCommitsFail": {
        "source_failed_total{name='c'}": "0x30 1+60x30",
        "source_commits_total{name='c'}": "0+60x30 1800x30",
    },
    "ConsumerMapCut": {"consumer_map_cut{name='c',topic='t',partition='0'}": "1x60"},
    "ConsumerHandlersDeaf": {"consumer_deaf_total{name='c'}": "0x45 1x15"},
    "ConsumerNotReady": {
        "consumer_state{name='c',state='ready'}": "1x30 0x30",
        "consumer_state{name='c',state='not_ready'}": "0x30 1x30",
    },
}
"""Every alert, and the differences from a healthy consumer for which it alone fires."""


def scenario(series: dict[str, str], *alerts: str) -> dict[str, object]:
    firing = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts]
    return {
        "interval": "1m",
        "input_series": [
            {"series": name.replace("'", '"'), "values": values} for name, values in series.items()
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "50m",
                "exp_samples": firing,
            }
        ],
    }


def test_every_rule_has_a_recorded_series() -> None:
    """consumer/O32."""
    assert {alert.name for alert in alerts_of(CONSUMER)} == set(ILL)


def test_each_rule_of_consumers_fires_on_its_recorded_series_alone(
    promtool: str, tmp_path: Path
) -> None:
    """consumer/O32: none fires if all is well."""
    recorded = {
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "1m",
        "tests": [
            scenario(HEALTHY),
            *(scenario(HEALTHY | changes, alert) for alert, changes in ILL.items()),
        ],
    }
    check_rules(promtool, tmp_path, yaml.safe_dump(recorded))
