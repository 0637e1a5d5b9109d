"""The alert rules: they parse, refer to existing metrics, and fire when they should."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import yaml
from tests.telemetry.test_prometheus import NAMES
from tests.telemetry.test_tenants import TENANT_NAMES

from penstock.telemetry import alert_rules

if TYPE_CHECKING:
    from pathlib import Path

RECORDED = """
rule_files: [alerts.yml]
evaluation_interval: 1m
tests:
  - interval: 1m  # healthy: half of the ledger's tenth, both reasons, quick
    input_series:
      - {series: 'batcher_queue_depth{name="audit"}', values: '100x60'}
      - {series: 'batcher_queue_capacity_items{name="audit"}', values: '10000x60'}
      - {series: 'batcher_backing_off_items{name="audit"}', values: '0x60'}
      - {series: 'batcher_held_keys{name="audit"}', values: '0x60'}
      - {series: 'batcher_tenant_pending_items{name="audit",tenant="acme"}', values: '100x60'}
      - {series: 'batcher_tenant_pending_items{name="audit",tenant="other"}', values: '9000x60'}
      - {series: 'batcher_flushed_ok_total{name="audit"}', values: '0+60000x60'}
      - {series: 'batcher_enqueued_total{name="audit"}', values: '0+60000x60'}
      - {series: 'batcher_flush_total{name="audit",reason="size"}', values: '0+60x60'}
      - {series: 'batcher_flush_total{name="audit",reason="time"}', values: '0+60x60'}
      - {series: 'batcher_items_total{name="audit",outcome="delivered"}', values: '0+60000x60'}
      - {series: 'batcher_batch_size_items_bucket{name="audit",le="100"}', values: '0+10x60'}
      - {series: 'batcher_batch_size_items_bucket{name="audit",le="500"}', values: '0+120x60'}
      - {series: 'batcher_batch_size_items_bucket{name="audit",le="+Inf"}', values: '0+120x60'}
      - {series: 'batcher_flush_duration_seconds_bucket{name="audit",result="ok",le="0.064"}', values: '0+120x60'}
      - {series: 'batcher_flush_duration_seconds_bucket{name="audit",result="ok",le="+Inf"}', values: '0+120x60'}
    alert_rule_test:
      - &quiet {eval_time: 50m, alertname: BatcherQueueFilling, exp_alerts: []}
      - {eval_time: 50m, alertname: BatcherFlushSlow, exp_alerts: []}
      - {eval_time: 50m, alertname: BatcherOnlySizeTrigger, exp_alerts: []}
      - {eval_time: 50m, alertname: BatcherLosing, exp_alerts: []}
      - {eval_time: 50m, alertname: BatcherOutage, exp_alerts: []}
      - {eval_time: 50m, alertname: BatcherKeysHeld, exp_alerts: []}
      - {eval_time: 50m, alertname: BatcherTenantFilling, exp_alerts: []}
      - {eval_time: 50m, alertname: BatcherBatchesSmall, exp_alerts: []}
  - interval: 1m  # overflow drops, and nothing else is wrong
    input_series:
      - {series: 'batcher_items_total{name="audit",outcome="delivered"}', values: '0+60000x60'}
      - {series: 'batcher_items_total{name="audit",outcome="dropped"}', values: '0x40 1x20'}
      - {series: 'batcher_items_total{name="audit",outcome="rejected"}', values: '0x60'}
    promql_expr_test:
      - expr: count by (alertname) (ALERTS{alertstate="firing"})
        eval_time: 45m
        exp_samples: [{labels: '{alertname="BatcherLosing"}', value: 1}]
      - {expr: 'count(ALERTS)', eval_time: 35m, exp_samples: []}
  - interval: 1m  # a grant is revoked for ten minutes
    input_series:
      - {series: 'batcher_destination_state{name="audit",state="refused"}', values: '0x20 1x10 0x30'}
      - {series: 'batcher_destination_state{name="audit",state="unavailable"}', values: '0x60'}
    promql_expr_test:
      - expr: count by (alertname) (ALERTS{alertstate="firing"})
        eval_time: 25m
        exp_samples: [{labels: '{alertname="BatcherDestinationRefuses"}', value: 1}]
      - {expr: 'count(ALERTS)', eval_time: 40m, exp_samples: []}
  - interval: 1m  # keys are parked, and a tenant floods
    input_series:
      - {series: 'batcher_held_keys{name="audit"}', values: '3x60'}
      - {series: 'batcher_queue_capacity_items{name="audit"}', values: '10000x60'}
      - {series: 'batcher_tenant_pending_items{name="audit",tenant="acme"}', values: '6000x60'}
      - {series: 'batcher_tenant_pending_items{name="audit",tenant="bee"}', values: '200x60'}
    promql_expr_test:
      - expr: count by (alertname, tenant) (ALERTS{alertstate="firing"})
        eval_time: 30m
        exp_samples:
          - {labels: '{alertname="BatcherKeysHeld"}', value: 1}
          - {labels: '{alertname="BatcherTenantFilling",tenant="acme"}', value: 1}
  - interval: 1m  # the destination is locked: depth up, every batch full, slow, nothing delivered
    input_series:
      - {series: 'batcher_queue_depth{name="audit"}', values: '9000x60'}
      - {series: 'batcher_queue_capacity_items{name="audit"}', values: '10000x60'}
      - {series: 'batcher_backing_off_items{name="audit"}', values: '500x60'}
      - {series: 'batcher_flushed_ok_total{name="audit"}', values: '5x60'}
      - {series: 'batcher_flush_total{name="audit",reason="size"}', values: '0+6x60'}
      - {series: 'batcher_items_total{name="audit",outcome="unknown"}', values: '0+10x60'}
      - {series: 'batcher_flush_duration_seconds_bucket{name="audit",result="error",le="4.096"}', values: '0x60'}
      - {series: 'batcher_flush_duration_seconds_bucket{name="audit",result="error",le="8.192"}', values: '0+6x60'}
      - {series: 'batcher_flush_duration_seconds_bucket{name="audit",result="error",le="+Inf"}', values: '0+6x60'}
    promql_expr_test:
      - expr: count by (alertname) (ALERTS{alertstate="firing"})
        eval_time: 50m
        exp_samples:
          - {labels: '{alertname="BatcherFlushSlow"}', value: 1}
          - {labels: '{alertname="BatcherLosing"}', value: 1}
          - {labels: '{alertname="BatcherOnlySizeTrigger"}', value: 1}
          - {labels: '{alertname="BatcherOutage"}', value: 1}
          - {labels: '{alertname="BatcherQueueFilling"}', value: 1}
"""


def test_the_rules_speak_of_metrics_that_exist() -> None:
    """B-T56, batcher/B35."""
    groups = yaml.safe_load(alert_rules())["groups"]
    rules = groups[0]["rules"]
    assert len(rules) >= 5
    known = {
        name + suffix
        for name in (*NAMES, *TENANT_NAMES)
        for suffix in ("", "_total", "_bucket", "_count", "_sum")
    }
    for rule in rules:
        assert set(re.findall(r"batcher_\w+", rule["expr"])) <= known
        assert rule["annotations"]["summary"]


def test_the_rules_fire_on_recorded_series(promtool: str, tmp_path: Path) -> None:
    """B-T56: none fires if all is well; the signature of a locked table is detected (B-T46)."""
    check_rules(promtool, tmp_path, RECORDED)


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
