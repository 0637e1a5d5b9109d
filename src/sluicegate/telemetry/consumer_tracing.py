"""Spans of handlers, linked to the spans that produced their messages.

1. One span per turn of a handler, for one message or a batch. It is current while the handler and
   its steps run, so that spans of the handler's calls are in its trace. A batch's steps run before
   its span.
2. The span links to the context in each record's headers, once per trace. OpenTelemetry's semantic
   conventions for messaging require links: a message may be handled long after its trace has ended,
   and by several consumers. `as_child` also continues the trace, for a handler of single messages.
3. Names and attributes follow the conventions, and contain no key, value or header.
4. Without this observer no function is called per message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core import checks
from .._core.logs import for_log
from .._core.observer import ConsumerObserver
from .._core.public import publish
from .tracing import LINKS_PER_SPAN, otel_trace_api

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

    from .._core.observer import HandlerEnd, HandlerOutcome, HandlerWatch

_FAILED: frozenset[HandlerOutcome] = frozenset(
    {"nak", "dead_letter", "terminate", "mixed", "invalid", "error"}
)


class ConsumerTracing(ConsumerObserver):
    """A span `process <topic>` per message, or per batch, linked to the spans of the producers.

    The span has the attributes `messaging.system`, `messaging.operation.name` and `.type`,
    `messaging.consumer.group.name` (if given), `messaging.destination.name` and `.partition.id` (if
    they are the same for all messages), `sluicegate.consumer.name` and `sluicegate.outcome`. For a
    single message it also has `messaging.kafka.offset` (`sluicegate.message.offset` in another
    system) and `sluicegate.message.attempt`, for a batch `messaging.batch.message_count`. Its
    status is an error if the handler failed or did not acknowledge; `error.type` and the
    description contain no values.

    Args:
        system: the messaging system, as the semantic conventions name it.
        group: the consumer group, if there is one.
        tracer_provider: default: OpenTelemetry's global one.
        propagator: reads a context from headers; default: OpenTelemetry's global one, which reads
            `traceparent`.
        as_child: whether the span of a single message is a child of the producer's span, in the
            same trace; the link remains.
        max_links: maximum number of links of a batch. Default 128, the limit of the SDK, which
            silently drops further links; `sluicegate.links.omitted` counts the links omitted here.

    Put it before observers that need its span. Raises `ConfigError` for a bad argument and
    `MissingExtra` without `opentelemetry`.
    """

    def __init__(
        self,
        *,
        system: str = "kafka",
        group: str | None = None,
        tracer_provider: TracerProvider | None = None,
        propagator: TextMapPropagator | None = None,
        as_child: bool = False,
        max_links: int = LINKS_PER_SPAN,
    ) -> None:
        otel_trace_api("ConsumerTracing")
        self._system = checks.text("system", system)
        self._group = None if group is None else checks.text("group", group)
        self._provider = tracer_provider
        self._propagator = propagator
        self._as_child = checks.flag("as_child", as_child)
        self._max_links = checks.count("max_links", max_links)

    def handling(self, name: str, *, is_batch: bool) -> HandlerWatch:
        """Return a watch that creates spans for the turns of this consumer's handler."""
        trace = otel_trace_api("ConsumerTracing")
        tracer = trace.get_tracer("sluicegate", tracer_provider=self._provider)
        maker = BatchSpans if is_batch else MessageSpans
        return maker(
            tracer,
            self._context,
            self._fixed_attributes(name),
            self._max_links,
            as_child=self._as_child,
        )

    def _fixed_attributes(self, name: str) -> dict[str, Any]:
        """Return the attributes of all spans."""
        fixed = {
            "messaging.system": self._system,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "sluicegate.consumer.name": name,
        }
        return (
            fixed if self._group is None else fixed | {"messaging.consumer.group.name": self._group}
        )

    def _context(self, message: Any) -> Context:
        """Return the context in a message's headers."""
        from opentelemetry import propagate
        from opentelemetry.context import Context

        if not message.headers:
            return Context()
        extract = (self._propagator or propagate).extract
        return extract(message, context=Context(), getter=_HEADERS)

    def __repr__(self) -> str:
        return f"ConsumerTracing(system={self._system!r})"


class _Headers:
    """Getter of a message's headers for propagators; headers that are not text are omitted."""

    def get(self, carrier: Any, key: str) -> list[str] | None:
        """Return the values of a header."""
        found = [
            text
            for name, value in carrier.headers
            if name.lower() == key.lower() and (text := _text(value)) is not None
        ]
        return found or None

    def keys(self, carrier: Any) -> list[str]:
        """Return the names of all headers."""
        return [name for name, _ in carrier.headers]


_HEADERS: Any = _Headers()


def _text(value: object) -> str | None:
    if not isinstance(value, (bytes, bytearray)):
        return value if isinstance(value, str) else None
    try:
        return bytes(value).decode("ascii")
    except UnicodeDecodeError:
        return None


class MessageSpans:
    """The spans of single messages."""

    def __init__(
        self,
        tracer: Tracer,
        context_of: Callable[[Any], Context],
        fixed: Mapping[str, Any],
        max_links: int,
        *,
        as_child: bool,
    ) -> None:
        self._tracer = tracer
        self._context_of = context_of
        self._fixed = fixed
        self._max_links = max_links
        self._as_child = as_child

    def __call__(self, messages: Sequence[Any]) -> Callable[[HandlerEnd], None]:
        """Start the span of a turn, and make it current."""
        (message,) = messages
        produced = self._context_of(message)
        attributes = {
            "messaging.destination.name": message.topic,
            "messaging.destination.partition.id": str(message.partition),
            self._offset: message.offset,
            "sluicegate.message.attempt": message.attempt,
        }
        links = distinct([produced])
        return self._start(attributes, links, produced, is_child=self._as_child)

    @property
    def _offset(self) -> str:
        is_kafka = self._fixed["messaging.system"] == "kafka"
        return "messaging.kafka.offset" if is_kafka else "sluicegate.message.offset"

    def _start(
        self,
        attributes: Mapping[str, Any],
        linked: Sequence[SpanContext],
        base: Context,
        *,
        is_child: bool = False,
    ) -> Callable[[HandlerEnd], None]:
        """Start a span that is current until its end; it is never a child of the span
        around `run`.
        """
        from opentelemetry import context

        trace = otel_trace_api("ConsumerTracing")
        topic = attributes.get("messaging.destination.name")
        span = self._tracer.start_span(
            "process" if topic is None else f"process {topic}",
            context=base if is_child else context.Context(),
            kind=trace.SpanKind.CONSUMER,
            attributes={**self._fixed, **attributes},
            links=[trace.Link(each) for each in linked],
        )
        token = context.attach(trace.set_span_in_context(span, base))

        def end(told: HandlerEnd) -> None:
            context.detach(token)
            try:
                _end(span, told)
            finally:
                span.end()

        return end


class BatchSpans(MessageSpans):
    """The spans of batches."""

    def __call__(self, messages: Sequence[Any]) -> Callable[[HandlerEnd], None]:
        """Start the span of a batch, and make it current."""
        from opentelemetry.context import Context

        linked = distinct([self._context_of(message) for message in messages])
        attributes: dict[str, Any] = {"messaging.batch.message_count": len(messages)}
        if len({message.topic for message in messages}) == 1:
            attributes["messaging.destination.name"] = messages[0].topic
            if len({message.partition for message in messages}) == 1:
                attributes["messaging.destination.partition.id"] = str(messages[0].partition)
        if len(linked) > self._max_links:
            attributes["sluicegate.links.omitted"] = len(linked) - self._max_links
        return self._start(attributes, linked[: self._max_links], Context())


def distinct(contexts: Sequence[Context]) -> list[SpanContext]:
    """Return the valid span contexts of these contexts, one per trace."""
    trace = otel_trace_api("ConsumerTracing")
    found = [trace.get_current_span(each).get_span_context() for each in contexts]
    return list({each.trace_id: each for each in found if each.is_valid}.values())


def _end(span: Span, told: HandlerEnd) -> None:
    """Record the end of a turn, without values."""
    span.set_attribute("sluicegate.outcome", told.outcome)
    if told.outcome not in _FAILED:
        return
    trace = otel_trace_api("ConsumerTracing")
    error = told.error
    shown = told.outcome if error is None else for_log(error)
    span.set_attribute("error.type", told.outcome if error is None else type(error).__qualname__)
    span.set_status(trace.Status(trace.StatusCode.ERROR, shown))


publish("sluicegate.telemetry", ConsumerTracing)
