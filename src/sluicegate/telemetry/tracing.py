"""Traces of batches, linked to the requests that added their items.

1. A batch belongs to many traces. Its span is not a child of any of them, but links to each
   trace once.
2. An SDK keeps the last 128 links of a span and silently drops the others. So further links are put
   on child spans, and an attribute counts the links omitted even then.
3. Items with a span context are unwrapped here: inner sinks get the plain items.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from .._core import checks
from .._core.batch import RowBatch, by_roots
from .._core.decorator import WrappingSink
from .._core.extras import need
from .._core.logs import for_log, log_safely
from .._core.send import send
from .._core.sink import WriteResult
from .._core.trace_context import WRITE_TRACE, Carried, WriteTrace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

    from .._core.batch import Batch
    from .._core.sink import Sink

logger = logging.getLogger("sluicegate.telemetry")

T = TypeVar("T")

LINKS_PER_SPAN = 128
"""The limit of the OpenTelemetry SDK (`OTEL_SPAN_LINK_COUNT_LIMIT`)."""


def traced(
    item: object, *, span: str | None = "batcher.add", tracer_provider: TracerProvider | None = None
) -> Any:
    """Return `item` with the context of a span that its batch links to: `await
    batcher.add(traced(event))`. For stacks with a `Tracing`.

    `span` is the name of a span that is created here, within the current trace; with `None` the
    current span is used. Without a sampled span the item is returned unchanged.
    """
    trace = otel_trace_api()
    if span is None:
        context = trace.get_current_span().get_span_context()
    else:
        with trace.get_tracer("sluicegate", tracer_provider=tracer_provider).start_as_current_span(
            span
        ) as made:
            context = made.get_span_context()
    return Carried(item, context) if context.is_valid and context.trace_flags.sampled else item


class Tracing:
    """A span per write of the wrapped sink, linked to the spans of its items (see `traced`).

    The span `batcher.flush` has the attributes `batch.size`, `batch.reason`, `batch.id`,
    `batch.name`, `batch.attempt` and, with links, `batch.links.total` and `batch.links.omitted`.
    Its status is an error if an item failed. It is current while the write runs, so spans of client
    libraries are its children.

    Sinks attach the trace context (`traceparent`, `tracestate`) to their messages, jobs and
    requests: the item's if it has one, otherwise, and to requests, that of `batcher.flush`.

    Args:
        tracer_provider: default: OpenTelemetry's global one.
        context_of: a function from an item to its `SpanContext`, or `None`; for items that already
            have one. Default: `traced` items.
        sampled_parent: whether the span is a child of the first item's span instead of a root span.
        max_links: maximum number of links; each 128 links beyond the first 128 are put on a child
            span `batcher.flush.links`. Default 1,024.
        propagate: whether sinks attach the trace context.

    Put it outermost. Raises `ConfigError` for a bad argument and `MissingExtra` without
    `opentelemetry`.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        context_of: Callable[[Any], SpanContext | None] | None = None,
        sampled_parent: bool = False,
        max_links: int = 1024,
        propagate: bool = True,
    ) -> None:
        otel_trace_api()
        if context_of is not None and not callable(context_of):
            raise checks.bad(
                "context_of", context_of, "must be a function from an item to a SpanContext or None"
            )
        self.tracer_provider = tracer_provider
        self.context_of = context_of
        self.sampled_parent = checks.flag("sampled_parent", sampled_parent)
        self.max_links = checks.count("max_links", max_links)
        self.propagate = checks.flag("propagate", propagate)

    def __call__(self, sink: Sink[T]) -> Sink[T]:
        """Wrap `sink`."""
        return _TracingSink(sink, self)

    def __repr__(self) -> str:
        return "Tracing()"


class _TracingSink(WrappingSink[T]):
    _run_time: ClassVar[tuple[str, ...]] = ("_tracer",)

    def __init__(self, inner: Sink[T], settings: Tracing) -> None:
        super().__init__(inner)
        self._settings = settings
        self._has_complained = False
        self._tracer: Tracer | None = None

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        contexts, plain = self._contexts(batch)
        distinct = list({context.trace_id: context for context in contexts.values()}.values())
        with self._span(batch, distinct) as span:
            self._link_further(distinct)
            attached = span if self._settings.propagate else None
            token = WRITE_TRACE.set(WriteTrace(batch.id, _by_root(batch, contexts), attached))
            try:
                errors = await send(self.inner, plain)
            finally:
                WRITE_TRACE.reset(token)
            if errors:
                _mark_failed(span, errors, len(batch))
        return WriteResult.failed(batch, errors) if errors else None

    def _contexts(self, batch: Batch[T]) -> tuple[dict[int, SpanContext], Batch[Any]]:
        """Return the span contexts of the items, by index, and the batch without them."""
        context_of = self._settings.context_of
        if context_of is not None:
            found = ((index, self._context(item, context_of)) for index, item in enumerate(batch))
            return {index: context for index, context in found if context is not None}, batch
        # types are checked first, since there are few: most batches have no contexts at all
        if not any(issubclass(kind, Carried) for kind in {*map(type, batch)}):
            return {}, batch
        contexts: dict[int, SpanContext] = {}
        items: list[Any] = []
        for index, item in enumerate(batch):
            carried: Any = item
            if isinstance(item, Carried):
                contexts[index] = carried.context
                carried = carried.item
            items.append(carried)
        return contexts, RowBatch(  # as `derive`, with the keys and sizes
            items,
            lineage=batch.lineage,
            delivery=batch.delivery,
            groups=[tuple(batch.roots((index,))) for index in range(len(items))],
            attempt=batch.attempt,
            keys=batch.keys,
            sizes=batch.sizes,
        )

    def _context(
        self, item: object, context_of: Callable[[Any], SpanContext | None]
    ) -> SpanContext | None:
        """Return the span context from `context_of`; `None` if that raises, since tracing must not
        fail a write. The first error is logged.
        """
        try:
            return context_of(item)
        except Exception as error:
            if not self._has_complained:
                self._has_complained = True
                message = (
                    "Tracing(context_of=...) raised %s; the span has no link to that "
                    "item, and its further errors are not logged"
                )
                log_safely(logger, logging.ERROR, message, for_log(error), error=error)
            return None

    def _span(
        self, batch: Batch[T], distinct: Sequence[SpanContext]
    ) -> AbstractContextManager[Span]:
        """Return the span of a write, with links to the first of these contexts."""
        trace, settings = otel_trace_api(), self._settings
        tracer = self._tracer
        if tracer is None:
            tracer = trace.get_tracer("sluicegate", tracer_provider=settings.tracer_provider)
            self._tracer = tracer
        attributes: dict[str, Any] = {
            "batch.size": len(batch),
            "batch.reason": batch.reason.value,
            "batch.id": batch.id,
            "batch.name": batch.name,
            "batch.attempt": batch.attempt,
        }
        if distinct:
            attributes |= {
                "batch.links.total": len(distinct),
                "batch.links.omitted": max(0, len(distinct) - settings.max_links),
            }
        parent = (
            trace.set_span_in_context(trace.NonRecordingSpan(distinct[0]))
            if distinct and settings.sampled_parent
            else None
        )
        links = [trace.Link(each) for each in distinct[: min(LINKS_PER_SPAN, settings.max_links)]]
        return tracer.start_as_current_span(
            "batcher.flush", context=parent, attributes=attributes, links=links
        )

    def _link_further(self, distinct: Sequence[SpanContext]) -> None:
        """Create child spans of the current one that link to the contexts beyond the first."""
        linked = distinct[: self._settings.max_links]
        for start in range(LINKS_PER_SPAN, len(linked), LINKS_PER_SPAN):
            part = linked[start : start + LINKS_PER_SPAN]
            links = [otel_trace_api().Link(each) for each in part]
            assert self._tracer is not None
            self._tracer.start_span("batcher.flush.links", links=links).end()

    def __repr__(self) -> str:
        return f"Tracing()({self.inner!r})"


def _by_root(batch: Batch[Any], contexts: Mapping[int, SpanContext]) -> Mapping[int, SpanContext]:
    """Return the contexts of the items, by index in the sealed batch."""
    return by_roots(batch, contexts) if contexts else contexts


def _mark_failed(span: Span, errors: Mapping[int, BaseException], size: int) -> None:
    trace = otel_trace_api()
    first = next(iter(errors.values()))
    span.set_attribute("batch.failed", len(errors))
    span.set_status(trace.Status(trace.StatusCode.ERROR, f"{len(errors)} of {size} items failed"))
    try:
        span.record_exception(first)
    except Exception:  # its text cannot be read
        span.record_exception(RuntimeError(for_log(first)))


def otel_trace_api(user: str = "Tracing") -> Any:
    """Return OpenTelemetry's tracing API. Raises `MissingExtra`, which names `user`, without it."""
    need("opentelemetry", "otel", user)
    from opentelemetry import trace

    return trace
