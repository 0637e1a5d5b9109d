"""The trace context of the current write: sinks attach it, and dead letters name its trace.

1. `Tracing` sets it for its writes. Without one, a sink reads one context variable per write.
2. A record of an item has the context of the item's own span. An item without one, and a request
   that carries several items, have that of the write's span, if it is recorded.
3. A function that is called for a record, without a sink, attaches that of its caller's span.
4. The headers are those of W3C Trace Context. A destination's or an item's own header of either name
   is kept, and then neither is added.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .batch import Batch

    TraceHeaders: TypeAlias = Mapping[str, str]

SpanContext: TypeAlias = Any
"""OpenTelemetry's `SpanContext`."""

TRACE_HEADERS = frozenset({"traceparent", "tracestate"})
NO_TRACE: TraceHeaders = {}


@dataclass(frozen=True, slots=True)
class Carried:
    """An item with the context of its span, until `Tracing` unwraps it."""

    item: Any
    context: SpanContext


@dataclass(frozen=True, slots=True)
class WriteTrace:
    """The span of a write, and the contexts of its items' spans."""

    batch_id: str
    items: Mapping[int, SpanContext]
    """By index in the sealed batch."""
    span: Any
    """OpenTelemetry's `Span`; `None` if nothing is to be attached."""

    @property
    def headers(self) -> TraceHeaders:
        """The headers of the write's span; none unless it is recorded, and after its end."""
        if self.span is None or not self.span.is_recording():
            return NO_TRACE
        return _headers(self.span.get_span_context())


WRITE_TRACE: ContextVar[WriteTrace | None] = ContextVar("sluicegate write trace", default=None)


def trace_of(root: int) -> str | None:
    """Return the trace id of an item by its index in the sealed batch; `None` without tracing."""
    trace = WRITE_TRACE.get()
    context = None if trace is None else trace.items.get(root)
    return None if context is None else f"{context.trace_id:032x}"


def request_trace() -> TraceHeaders:
    """Return the headers of a request for several items of the current write."""
    trace = WRITE_TRACE.get()
    return NO_TRACE if trace is None else trace.headers


def item_traces(batch: Batch[Any]) -> Sequence[TraceHeaders] | None:
    """Return the headers for each item of the current write; `None` if there are none."""
    trace = WRITE_TRACE.get()
    if trace is None or trace.span is None:
        return None
    of_write = trace.headers
    if not trace.items or batch.id != trace.batch_id:  # other items
        return [of_write] * len(batch) if of_write else None
    found: dict[int, TraceHeaders] = {
        root: _headers(each) for root, each in trace.items.items() if each.is_valid
    }
    roots = [each if isinstance(each, tuple) else (each,) for each in batch.origins]
    return [next((found[r] for r in group if r in found), of_write) for group in roots]


def caller_trace() -> TraceHeaders:
    """Return the headers of the caller's current span; none unless it is recorded."""
    trace: Any = sys.modules.get("opentelemetry.trace")  # without it there is no span
    span = None if trace is None else trace.get_current_span()
    return (
        _headers(span.get_span_context()) if span is not None and span.is_recording() else NO_TRACE
    )


def unless_given(trace: TraceHeaders, names: Iterable[str]) -> TraceHeaders:
    """Return the headers to add to those with these names."""
    if not trace or any(name.lower() in TRACE_HEADERS for name in names):
        return NO_TRACE
    return trace


def _headers(context: SpanContext) -> TraceHeaders:
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    state = context.trace_state.to_header()
    return {"traceparent": parent, **({"tracestate": state} if state else {})}
