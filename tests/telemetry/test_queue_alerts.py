"""The alert rules of queues: they refer to existing metrics, and fire when they should.

White box: the table of metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml
from tests.telemetry.alerts import alerts_of
from tests.telemetry.test_alerts import check_rules
from tests.telemetry.test_consumer_alerts import scenario

from sluicegate.postgres.metrics.queue_definitions import QUEUES

if TYPE_CHECKING:
    from pathlib import Path


def series(queue: str, **values: str) -> dict[str, str]:
    """The series of a queue."""
    return {f"queue_{name}{{name='shop',queue='{queue}'}}": each for name, each in values.items()}


MAILS = {
    "paused": "0x60",
    "jobs": "100x60",
    "ready_keys": "5x60",
    "unmerged_bells": "1x60",
    "oldest_ready_seconds": "5x60",
    "leases": "3x60",
    "blocked_keys": "0x60",
    "parked_keys": "0x60",
    "dead_letters": "7x60",  # long ago
    "members": "2x60",
    "unowned_slots": "0x20 256x3 0x37",  # one consumer was replaced
}
JOB, LANE = (f"queue_table_dead_rows{{name='shop',table='{table}'}}" for table in ("job", "lane"))
HEALTHY = {
    "queue_up{name='shop'}": "1x20 0x2 1x40",  # one poll failed
    **series("mails", **MAILS),
    JOB: "90000x60",
    LANE: "9000x60",
    # paused: not handled, without consumers
    **series(
        "paused",
        **{
            **MAILS,
            "paused": "1x60",
            "oldest_ready_seconds": "0+60x60",
            "members": "0x60",
            "leases": "0x60",
            "unowned_slots": "65536x60",
        },
    ),
    # idle: no consumer, and no job to handle
    **series(
        "idle",
        **{
            **MAILS,
            "ready_keys": "0x60",
            "unmerged_bells": "0x60",
            "oldest_ready_seconds": "0x60",
            "members": "0x60",
            "leases": "0x60",
        },
    ),
}
GONE = {name: "5x30 _x30" for name in MAILS if name not in {"paused", "members"}}
ILL = {
    "QueueStandsStill": series("mails", oldest_ready_seconds="0+60x60"),
    "QueueWithoutConsumers": series("mails", members="2x30 0x30", leases="3x30 0x30"),
    "QueueKeysStopped": series("mails", parked_keys="0x30 1x30"),
    "QueueDeadLettersRising": series("mails", dead_letters="7x45 9x15"),
    "QueueSlotsUnowned": series("mails", unowned_slots="256x60"),
    "QueueTableBloated": {LANE: "0+6000x60"},
    "QueueUnknown": series(
        "mails", **{**GONE, "blocked_keys": "0x30 _x30", "parked_keys": "0x30 _x30", "unowned_slots": "0x30 _x30"}
    ),
    "QueueWatchFails": {"queue_up{name='shop'}": "1x40 0x20"},
}  # fmt: skip
"""Every alert, and the differences from healthy queues for which it alone fires."""


def test_every_rule_has_a_recorded_series() -> None:
    assert {alert.name for alert in alerts_of(QUEUES)} == set(ILL)


def test_each_rule_of_queues_fires_on_its_recorded_series_alone(
    promtool: str, tmp_path: Path
) -> None:
    """None fires for healthy and paused queues, nor for idle ones without consumers."""
    recorded = {
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "1m",
        "tests": [
            scenario(HEALTHY),
            *(scenario(HEALTHY | changes, alert) for alert, changes in ILL.items()),
        ],
    }
    check_rules(promtool, tmp_path, yaml.safe_dump(recorded))
