"""Generates the reference page of metrics from the tables.

White box: the tables of metrics.

`PYTHONPATH=src python -m tests.telemetry.page` writes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sluicegate.postgres.metrics.queue_definitions import QUEUES
from sluicegate.postgres.metrics.stream_definitions import STREAM
from sluicegate.spark.metrics import QUERY
from sluicegate.telemetry.batcher_metrics import BATCHER
from sluicegate.telemetry.consumer_metrics import CONSUMER

if TYPE_CHECKING:
    from sluicegate.telemetry.metric import Catalogue, Metric

CATALOGUES = (BATCHER, CONSUMER, STREAM, QUEUES, QUERY)
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
TITLES = {
    "batcher": "Batchers and sinks",
    "consumer": "Consumers and sources",
    "stream": "Logs of streams",
    "queue": "Queues",
    "query": "Streaming queries of Spark",
}
TOP = """\
# Metrics

The metrics for [Prometheus](../how-to/watch-with-prometheus.md). Each also has the label `name`. For
[OpenTelemetry](../how-to/watch-with-prometheus.md#opentelemetry) the first underscore is a dot, and `_total`
and `_seconds` are missing: `batcher_flush_total` is `batcher.flush`. A *maximum* is a gauge: several
objects or processes of one name show the greatest value instead of the sum.
"""


def page() -> str:
    """The text of the page."""
    return "\n".join([TOP, *(_section(catalogue) for catalogue in CATALOGUES)])


def _section(catalogue: Catalogue) -> str:
    rows = "\n".join(
        _row(metric, catalogue) for metric in (*catalogue.metrics, *catalogue.by_tenant)
    )
    return f"""\
## {TITLES[catalogue.name]}

| metric | kind | labels | meaning |
|---|---|---|---|
{rows}
"""


def _row(metric: Metric, catalogue: Catalogue) -> str:
    name = f"{metric.name}_total" if metric.kind == "counter" else metric.name
    kind = "maximum" if metric.kind == "max" else metric.kind
    values = ", ".join(f"`{value}`" for series in metric.first_series for value in series)
    labels = ", ".join(metric.labels) + (f" ({values})" if values else "")
    text = metric.text
    if metric.kind == "histogram":
        text += f" Buckets: {_buckets(metric.buckets)}."
    if metric in catalogue.by_tenant:
        text += " Only with `tenants=`."
    return f"| `{name}` | {kind} | {labels} | {text} |"


def _buckets(bounds: tuple[float, ...]) -> str:
    if bounds[1] == 2 * bounds[0]:
        return f"doubled {len(bounds) - 1} times from {bounds[0]} to {bounds[-1]:.4g}"
    return ", ".join(map(str, bounds))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
