"""Log lines to Grafana Loki. Usage: python logs_to_loki.py http://loki:3100"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sluicegate
from sluicegate import ErrorClass
from sluicegate.http import HttpAccess, HttpSink, classify_http

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Line:
    at: int
    """Nanoseconds since 1970, as from `time.time_ns()`."""
    level: str
    text: str
    about: dict[str, str] = field(default_factory=dict[str, str])
    """Structured metadata: values that are too diverse for a label."""


def record_of(line: Line) -> bytes:
    labels = {"app": "shop", "level": line.level}
    return json.dumps([labels, [str(line.at), line.text, line.about]]).encode()


def push(records: Sequence[bytes]) -> bytes:
    """Build a push request: the records, grouped by their labels."""
    streams: dict[str, dict[str, object]] = {}
    values: dict[str, list[object]] = {}
    for labels, value in map(json.loads, records):
        name = json.dumps(labels, sort_keys=True)
        values.setdefault(name, []).append(value)
        streams[name] = {"stream": labels, "values": values[name]}
    return json.dumps({"streams": list(streams.values())}).encode()


def loki(url: str) -> HttpSink:
    return HttpSink(
        HttpAccess(f"{url}/loki/api/v1/push", headers={"Content-Type": "application/json"}),
        encode=record_of,
        body=push,
        compression="gzip",
        max_bytes=1_000_000,
        idempotent=True,
    )


def class_of(error: BaseException) -> ErrorClass | None:
    """A 5xx is an outage: Loki answers 500 while too few of its ingesters run."""
    is_failing = classify_http(error) is ErrorClass.TRANSIENT
    return ErrorClass.UNAVAILABLE if is_failing else None


async def main(url: str) -> None:
    retry = sluicegate.Retry(classify=class_of)
    sink = sluicegate.stack(loki(url), sluicegate.Timeout(5.0), sluicegate.sinks.Isolate(), retry)
    limits = sluicegate.Limits(max_items=1_000, max_delay=1.0)
    async with sluicegate.Batcher(sink, name="loki", limits=limits) as batcher:
        await batcher.add(Line(1767225600000000001, "info", "started"))
        await batcher.add(Line(1767225600000000002, "error", "no such item", {"order": "4711"}))
        await batcher.add(Line(1767225600000000003, "info", "stopped"))
    assert batcher.report is not None
    print(batcher.report.tally)


if __name__ == "__main__":
    sluicegate.run(main(sys.argv[1]))
