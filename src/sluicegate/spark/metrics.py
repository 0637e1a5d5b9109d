"""The table of metrics of Spark's streaming queries, and the values that they are read from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from ..telemetry.consumer_metrics import PARTITION
from ..telemetry.metric import EVENT, Catalogue, Metric, Values

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

STATES = ("active", "idle", "ended", "failed")


def _by_state(query: Any) -> Values:
    return {(state,): float(state == query.state) for state in STATES}


def _lags(query: Any) -> Values:
    lags: Values = query.lags
    return lags


# fmt: off
DURATION = Metric(
    "spark_query_batch_duration_seconds", "histogram", "s", EVENT, (),
    "Duration of a micro-batch, in seconds.", tuple(0.1 * 2**power for power in range(14)))

QUERY = Catalogue("query", (
    DURATION,
    # states
    Metric("spark_query_state", "gauge", "{query}", _by_state, ("state",),
           "Whether the query is active, idle (no new rows), ended or failed: "
           "1 for its current state.", label_values=STATES),
    Metric("spark_query_input_rows_per_second", "gauge", "{row}/s", "input_rate", (),
           "Rows that arrived per second before the last micro-batch."),
    Metric("spark_query_processed_rows_per_second", "gauge", "{row}/s", "processed_rate", (),
           "Rows that the last micro-batch processed per second."),
    Metric("spark_query_last_trigger_seconds", "max", "s", "triggered", (),
           "Time at which the query last began a micro-batch, or found no new rows, "
           "in seconds since 1970."),
    Metric("spark_query_lag", "gauge", "{message}", _lags, PARTITION,
           "End of a partition of Kafka minus the position of the query, "
           "as known to the last micro-batch."),
    Metric("spark_query_state_rows", "gauge", "{row}", "state_rows", (),
           "Rows that aggregations, joins and deduplication keep."),
    Metric("spark_query_state_bytes", "gauge", "By", "state_bytes", (),
           "Memory of these rows on the executors."),
    # totals
    Metric("spark_query_input_rows", "counter", "{row}", "rows", (),
           "Rows read by micro-batches."),
    Metric("spark_query_late_rows", "counter", "{row}", "late_rows", (),
           "Rows dropped because they were older than the watermark."),
    Metric("spark_query_failures", "counter", "{failure}", "failures", (),
           "Runs of the query that ended with an error."),
))
# fmt: on


@dataclass(eq=False, slots=True, weakref_slot=True)
class Query:
    """What is known about the queries of one name. The values are those of the last micro-batch."""

    state: str = "active"
    input_rate: float | None = None
    processed_rate: float | None = None
    triggered: float | None = None
    lags: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    state_rows: int = 0
    state_bytes: int = 0
    rows: int = 0
    late_rows: int = 0
    failures: int = 0

    def stats(self) -> Query:
        """Return itself, for exporters."""
        return self

    def turn(self, state: str, triggered: str | None = None) -> None:
        """Change the state, and the time of the last trigger, in ISO 8601."""
        self.state = state
        self.failures += state == "failed"
        if triggered is not None:
            self.triggered = datetime.fromisoformat(triggered).timestamp()

    def progress(self, made: StreamingQueryProgress) -> None:
        """Take the values of a micro-batch."""
        self.turn("active", made.timestamp)
        self.input_rate, self.processed_rate = made.inputRowsPerSecond, made.processedRowsPerSecond
        self.rows += made.numInputRows or 0
        operators = made.stateOperators
        self.state_rows = sum(each.numRowsTotal for each in operators)
        self.state_bytes = sum(each.memoryUsedBytes for each in operators)
        self.late_rows += sum(each.numRowsDroppedByWatermark for each in operators)
        self.lags = {}
        for source in made.sources:
            reached = _offsets(source.endOffset)
            for place, end in _offsets(source.latestOffset).items():
                lag = end - reached.get(place, end)
                self.lags[place] = max(lag, self.lags.get(place, 0))


def _offsets(text: str | None) -> dict[tuple[str, str], int]:
    """Return the offsets of a source of Kafka, by topic and partition; empty for other sources."""
    try:
        topics = cast("object", json.loads(text or "null"))
    except ValueError:  # offsets of other sources may be any text
        return {}
    if not isinstance(topics, dict):
        return {}
    return {
        (topic, partition): offset
        for topic, partitions in cast("dict[str, Any]", topics).items()
        if isinstance(partitions, dict)
        for partition, offset in cast("dict[str, Any]", partitions).items()
        if isinstance(offset, int)
    }
