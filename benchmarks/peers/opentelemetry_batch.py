"""OpenTelemetry's batch processor for log records, with an exporter that only counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk._logs import ReadWriteLogRecord
from opentelemetry.sdk._logs.export import (
    BatchLogRecordProcessor,
    LogRecordExporter,
    LogRecordExportResult,
)
from opentelemetry.sdk.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Sequence


class CountingExporter(LogRecordExporter):
    """An exporter that only counts."""

    def __init__(self) -> None:
        self.count = 0

    def export(self, batch: Sequence[Any]) -> LogRecordExportResult:
        self.count += len(batch)
        return LogRecordExportResult.SUCCESS

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


def processor(
    exporter: LogRecordExporter, *, size: int, linger: float, depth: int
) -> BatchLogRecordProcessor:
    """Make the SDK's processor with the same limits and metrics that do nothing."""
    return BatchLogRecordProcessor(
        exporter,
        schedule_delay_millis=linger * 1000,
        max_export_batch_size=size,
        max_queue_size=depth,
        meter_provider=NoOpMeterProvider(),
    )


def record() -> ReadWriteLogRecord:
    """Make a small log record for `on_emit`."""
    from opentelemetry._logs import LogRecord

    return ReadWriteLogRecord(LogRecord(body="an item"), resource=Resource.get_empty())
