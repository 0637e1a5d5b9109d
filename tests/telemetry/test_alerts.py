"""The alert rules: they parse, refer to existing metrics, and fire when they should.

White box: the tables of metrics.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml
from tests.docs.pages import ROOT
from tests.telemetry.alerts import alerts_of
from tests.telemetry.page import CATALOGUES, PAGE, page

from sluicegate.telemetry import alert_rules
from sluicegate.telemetry.batcher_metrics import BATCHER

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.telemetry.metric import Catalogue

N = "{name='audit',instance='a'"


def sizes(rate: int, *, most: int, at_once: int) -> dict[str, str]:
    """The series of `rate` items a minute in batches of `at_once`, with `max_items=most`."""
    writes = rate // at_once
    buckets = (1, 5, 10, 50, 100, 500, 1000, 5000, 10000)
    counts = {le: f"0+{writes if at_once <= le else 0}x60" for le in buckets}
    return {
        f"batcher_max_items{N}}}": f"{most}x60",
        f"batcher_enqueued_total{N}}}": f"0+{rate}x60",
        f"batcher_batch_size_items_sum{N}}}": f"0+{writes * at_once}x60",
        f"batcher_batch_size_items_count{N}}}": f"0+{writes}x60",
        f"batcher_batch_size_items_bucket{N},le='+Inf'}}": f"0+{writes}x60",
        **{f"batcher_batch_size_items_bucket{N},le='{le}'}}": n for le, n in counts.items()},
    }


def flushes(**by_reason: int) -> dict[str, str]:
    """The series of writes a minute, by reason."""
    return {f"batcher_flush_total{N},reason='{r}'}}": f"0+{n}x60" for r, n in by_reason.items()}


def seconds(le: str, *, writes: int) -> dict[str, str]:
    """The series of writes that take at most `le` seconds, and more than half of that."""
    name, bounds = "batcher_flush_duration_seconds_bucket", ("0.064", "0.128", "0.256", "8.192")
    ends = {at: writes if float(at) >= float(le) else 0 for at in bounds} | {"+Inf": writes}
    return {f"{name}{N},result='ok',le='{at}'}}": f"0+{n}x60" for at, n in ends.items()}


def items(outcome: str, course: str) -> dict[str, str]:
    return {f"batcher_items_total{N},outcome='{outcome}'}}": course}


HEALTHY = {
    f"batcher_queue_depth{N}}}": "400x60",
    f"batcher_queue_capacity_items{N}}}": "1000x60",
    f"batcher_backing_off_items{N}}}": "0x60",
    f"batcher_held_keys{N}}}": "0x60",
    f"batcher_tenant_pending_items{N},tenant='acme'}}": "100x60",
    f"batcher_tenant_pending_items{N},tenant='other'}}": "900x60",
    f"batcher_destination_state{N},state='refused'}}": "0x60",
    f"batcher_destination_state{N},state='unavailable'}}": "0x60",
    f"batcher_flushed_ok_total{N}}}": "0+90000x60",
    f"batcher_max_delay_seconds{N}}}": "0.2x60",
    f"batcher_lost_total{N}}}": "0x60",
    f"batcher_spool_fill_ratio{N}}}": "0.8x60",
    f"batcher_spool_oldest_age_seconds{N}}}": "3600x60",
    f"batcher_spool_parked_items{N}}}": "0x60",
    **sizes(90_000, most=500, at_once=200),
    **flushes(size=150, time=300),
    **seconds("0.128", writes=450),
    **items("delivered", "0+90000x60"),
    **items("dead_lettered", "0x20 1x40"),  # one letter in an hour
}
ILL = {
    "BatcherBatchesSmall": sizes(90_000, most=500, at_once=40),
    "BatcherBatchesLarge": sizes(90_000, most=500, at_once=400),
    "BatcherFlushSlow": seconds("0.256", writes=450),
    "BatcherOnlySizeTrigger": flushes(size=200, bytes=250, time=1),
    "BatcherOnlyTimeTrigger": flushes(size=1, time=450),
    "BatcherQueueFilling": {f"batcher_queue_depth{N}}}": "501x60"},
    "BatcherLosing": {f"batcher_lost_total{N}}}": "0x50 1x10", **items("dropped", "0x50 1x10")},
    "BatcherDeadLetters": items("dead_lettered", "0+60x60"),
    "BatcherKeysHeld": {f"batcher_held_keys{N}}}": "3x60"},
    "BatcherTenantFilling": {f"batcher_tenant_pending_items{N},tenant='acme'}}": "600x60"},
    "BatcherDestinationUnavailable": {
        f"batcher_destination_state{N},state='unavailable'}}": "0x40 1x20"
    },
    "BatcherOutage": {  # its only batch is in flight at every other scrape
        f"batcher_backing_off_items{N}}}": " ".join(["0 500"] * 30),
        f"batcher_flushed_ok_total{N}}}": "5x60",
    },
    "BatcherDestinationRefuses": {f"batcher_destination_state{N},state='refused'}}": "0x50 1x10"},
    "BatcherSpoolFilling": {f"batcher_spool_fill_ratio{N}}}": "0.81x60"},
    "BatcherSpoolOld": {f"batcher_spool_oldest_age_seconds{N}}}": "3000+60x60"},
    "BatcherSpoolParked": {f"batcher_spool_parked_items{N}}}": "1x60"},
}
"""Every alert, and the differences from a healthy batcher for which it alone fires."""
SILENT = {
    "a quiet service: its batches have one item, and a few slow writes are no trend": {
        **sizes(60, most=500, at_once=1),
        **flushes(size=0, time=1),
        **seconds("8.192", writes=1),
    },
    "a quiet service whose few batches are full": {
        **sizes(5_000, most=500, at_once=500),
        **flushes(size=10, time=0),
    },
    "full batches of few, large items": {
        **sizes(90_000, most=500, at_once=10),
        **flushes(bytes=6_000, time=3_000),
    },
    "the bounds themselves": {
        **sizes(90_000, most=500, at_once=250),
        f"batcher_queue_depth{N}}}": "500x60",
    },
    "a spool: its batches are commits, sealed by time and slower than their short delay": {
        f"batcher_spool_items{N}}}": "0x60",
        f"batcher_max_delay_seconds{N}}}": "0.005x60",
        **sizes(90_000, most=2000, at_once=40),
        **flushes(size=1, time=450),
        **seconds("0.256", writes=450),
    },
    "no linger": {f"batcher_max_delay_seconds{N}}}": "0x60"},
    "a pipe: rows withdrawn when a member joins, and a rejected one whose letter is stored": {
        **items("unsent", "0x48 150x12"),
        **items("rejected", "0x48 1x12"),
        f"batcher_withdrawn_total{N}}}": "0x48 150x12",
        f"batcher_dropped_on_shutdown_total{N}}}": "0x48 150x12",
        f"batcher_flushed_fail_total{N}}}": "0x48 1x12",
    },
    "an outage of less than two minutes": {
        f"batcher_destination_state{N},state='unavailable'}}": "0x53 1x1",
        f"batcher_backing_off_items{N}}}": "0x53 500x1",
    },
    "a refusal that has ended": {
        f"batcher_destination_state{N},state='refused'}}": "0x10 1x10 0x40"
    },
}
"""Differences from a healthy batcher for which no alert fires."""
LOCKED = {
    f"batcher_queue_depth{N}}}": "900x60",
    f"batcher_backing_off_items{N}}}": "500x60",
    f"batcher_flushed_ok_total{N}}}": "5x60",
    f"batcher_lost_total{N}}}": "0+10x60",
    **items("unknown", "0+10x60"),
    **flushes(size=12, time=0),
    **seconds("8.192", writes=12),
    **sizes(120_000, most=500, at_once=500),
}
"""Depth up, every batch full, slow, nothing delivered."""
OF_LOCKED = [
    "BatcherBatchesLarge", "BatcherFlushSlow", "BatcherLosing", "BatcherOnlySizeTrigger",
    "BatcherOutage", "BatcherQueueFilling",
]  # fmt: skip


@pytest.mark.parametrize("catalogue", CATALOGUES, ids=lambda each: each.name)
def test_the_rules_speak_of_metrics_that_exist(catalogue: Catalogue) -> None:
    known = {
        metric.name + suffix
        for metric in (*catalogue.metrics, *catalogue.by_tenant)
        for suffix in ("", "_total", "_bucket", "_count", "_sum")
    }
    for alert in alerts_of(catalogue):
        named = re.findall(r"\b(?:batcher|consumer|source|stream|queue)_\w+", alert.condition)
        assert named
        assert {*named} <= known
        assert alert.summary


def test_every_rule_has_a_recorded_series() -> None:
    """B-T56, batcher/B35: each of document 004's health rules has an alert of severity info."""
    assert {alert.name for alert in alerts_of(BATCHER)} == set(ILL)
    assert {alert.name for alert in alerts_of(BATCHER) if alert.level == "info"} == {
        f"Batcher{name}"
        for name in (
            "BatchesSmall", "BatchesLarge", "FlushSlow", "OnlySizeTrigger", "OnlyTimeTrigger",
            "QueueFilling",
        )
    }  # fmt: skip


def test_every_warning_has_its_steps() -> None:
    """The runbook of each alert about a batcher is a section of a page."""
    for alert in alerts_of(BATCHER):
        assert alert.runbook or alert.level == "info"
        if alert.runbook:
            page, _, section = alert.runbook.partition("#")
            headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
            assert section in {re.sub(r"[^a-z]+", "-", each.lower()) for each in headings}


def test_the_pages_list_every_alert() -> None:
    """Those of batchers and consumers with their severity."""
    folder = ROOT / "docs" / "how-to"
    pages = ["watch-with-prometheus.md", "install-in-postgresql.md", "operate-a-queue.md"]
    first, *others = [(folder / page).read_text() for page in pages]
    rules = [rule for group in yaml.safe_load(alert_rules())["groups"] for rule in group["rules"]]
    listed = re.findall(r"^\| `(\w+)` \| (info|warning|critical) \|", first, re.MULTILINE)
    listed += [
        (name, "") for name in re.findall(r"^\| `([SQ]\w+)` \|", "".join(others), re.MULTILINE)
    ]
    severities = {
        rule["alert"]: rule["labels"]["severity"] if rule["alert"][0] in "BC" else ""
        for rule in rules
    }
    assert sorted(listed) == sorted(severities.items())


def test_the_reference_page_is_made_from_the_tables() -> None:
    """Regenerate it with `PYTHONPATH=src python -m tests.telemetry.page`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_each_rule_fires_on_its_recorded_series_alone(promtool: str, tmp_path: Path) -> None:
    """B-T56: none fires if all is well; the signature of a locked table is detected (B-T46)."""
    cases: dict[str, tuple[dict[str, str], list[str]]] = {"healthy": ({}, [])}
    cases |= {alert: (ILL[alert], [alert]) for alert in ILL}
    cases |= {case: (changes, []) for case, changes in SILENT.items()}
    cases["a locked table"] = (LOCKED, OF_LOCKED)
    recorded = {
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": series.replace("audit", case).replace("'", '"'), "values": values}
                    for case, (changes, _) in cases.items()
                    for series, values in (HEALTHY | changes).items()
                ],
                "promql_expr_test": [
                    {
                        "expr": 'count by (name, alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": "55m",
                        "exp_samples": [
                            {"labels": f'{{name="{case}",alertname="{alert}"}}', "value": 1}
                            for case, (_, alerts) in cases.items()
                            for alert in alerts
                        ],
                    }
                ],
            }
        ],
    }
    check_rules(promtool, tmp_path, yaml.safe_dump(recorded))


def check_rules(promtool: str, folder: Path, recorded: str) -> None:
    """Let promtool check which alerts fire on recorded series."""
    (folder / "alerts.yml").write_text(alert_rules())
    (folder / "recorded.yml").write_text(recorded)
    done = subprocess.run(
        [promtool, "test", "rules", "recorded.yml"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
