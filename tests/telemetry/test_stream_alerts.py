"""The alert rules of logs: they refer to existing metrics, and fire when they should.

White box: the table of metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml
from tests.telemetry.alerts import alerts_of
from tests.telemetry.test_alerts import check_rules
from tests.telemetry.test_consumer_alerts import scenario

from sluicegate.postgres.metrics.stream_definitions import STREAM

if TYPE_CHECKING:
    from pathlib import Path

LABELS = "{name='log',subscription='s'}"
SLOTS = "stream_table_dead_rows{name='log',table='subscription_slot'}"
HEALTHY = {
    "stream_up{name='log'}": "1x20 0x2 1x40",  # one poll failed
    f"stream_lag_seconds{LABELS}": "5x60",
    f"stream_lag_messages{LABELS}": "100x60",
    f"stream_members{LABELS}": "2x60",
    f"stream_paused{LABELS}": "0x60",
    f"stream_missed_messages{LABELS}": "7x60",  # long ago
    "stream_horizon_age_seconds{name='log'}": "3x60",
    "stream_parked_keys{name='log',consumer='c'}": "0x60",
    SLOTS: "900x60",
    "stream_table_dead_rows{name='log',table='message'}": "900000x60",
    # paused: lags without members
    "stream_lag_seconds{name='log',subscription='paused'}": "0+60x60",
    "stream_lag_messages{name='log',subscription='paused'}": "0+60x60",
    "stream_members{name='log',subscription='paused'}": "0x60",
    "stream_paused{name='log',subscription='paused'}": "1x60",
    # served with other locks, which do not count members
    "stream_lag_seconds{name='log',subscription='other'}": "9x60",
    "stream_lag_messages{name='log',subscription='other'}": "9x60",
    "stream_paused{name='log',subscription='other'}": "0x60",
    # without members, but nothing to handle
    "stream_lag_seconds{name='log',subscription='idle'}": "0x60",
    "stream_lag_messages{name='log',subscription='idle'}": "0x60",
    "stream_members{name='log',subscription='idle'}": "0x60",
    "stream_paused{name='log',subscription='idle'}": "0x60",
}
ILL = {
    "StreamLagging": {f"stream_lag_seconds{LABELS}": "0+60x60"},
    "StreamWithoutMembers": {f"stream_members{LABELS}": "2x30 0x30"},
    "StreamMessagesMissed": {f"stream_missed_messages{LABELS}": "7x45 9x15"},
    "StreamHorizonStands": {"stream_horizon_age_seconds{name='log'}": "0x40 0+60x20"},
    "StreamKeysParked": {"stream_parked_keys{name='log',consumer='c'}": "1x60"},
    "StreamTableBloated": {SLOTS: "0+6000x60"},
    "StreamLagUnknown": {
        f"stream_lag_seconds{LABELS}": "5x30 _x30",
        f"stream_lag_messages{LABELS}": "5x30 _x30",
    },
    "StreamWatchFails": {"stream_up{name='log'}": "1x40 0x20"},
}
"""Every alert, and the differences from a healthy log for which it alone fires."""


def test_every_rule_has_a_recorded_series() -> None:
    assert {alert.name for alert in alerts_of(STREAM)} == set(ILL)


def test_each_rule_of_logs_fires_on_its_recorded_series_alone(
    promtool: str, tmp_path: Path
) -> None:
    """None fires for healthy and paused subscriptions, nor for idle ones without members."""
    recorded = {
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "1m",
        "tests": [
            scenario(HEALTHY),
            *(scenario(HEALTHY | changes, alert) for alert, changes in ILL.items()),
        ],
    }
    check_rules(promtool, tmp_path, yaml.safe_dump(recorded))
