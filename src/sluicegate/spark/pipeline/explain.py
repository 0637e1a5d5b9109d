"""The description of a pipeline as text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from .declaration import Destination, Layer, names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .declaration import Declared, Source, Step

_SECRET = re.compile(
    r"auth|config|connect_options|client_options|credential|dsn|engine_options|headers|jaas|key$|nkeys|params|password|secret|servers|token|url",
    re.IGNORECASE,
)
_NOT_SECRET = {("kafka", "key"), ("kafka", "headers"), ("nats", "headers")}
"""The arguments, by kind, that name columns."""
_REFERENCE = re.compile(r"\$\{[^}]*\}|env:\w+")
_DELIVERY = {
    "at_least_once": "at least once: a repeated attempt writes again",
    "bucket": "exactly once per bucket of keys: each commits with its row in a ledger",
    "atomic": "all rows at once, or none",
}


def explain(pipeline: Declared) -> str:
    """Describe the steps in order, one or more lines each."""
    return "\n".join(_lines(pipeline))


def _lines(pipeline: Declared) -> Iterator[str]:
    stream = pipeline.stream
    if stream is None:
        yield f"{pipeline.name}: reads the available rows once"
    else:
        when = (
            "reads the available rows, then ends"
            if stream.trigger == "available_now"
            else f"every {stream.trigger}"
        )
        yield f"{pipeline.name}: a stream, {when}; stores its position in {stream.checkpoint}"
    for name, source in pipeline.sources.items():
        yield f"  read    {name}: {_source(source)}"
        yield from _late_and_double(source)
    for name, step in pipeline.steps.items():
        yield f"  select  {name}:"
        yield textwrap.indent(textwrap.dedent(step.sql).strip(), " " * 12)
        yield from _late_and_double(step)
    yield from _write(pipeline)


def _source(source: Source) -> str:
    where = f" from {', '.join(names(source.path))}" if names(source.path) else ""
    options = f" ({_arguments(source.options)})" if source.options else ""
    schema = f", as {' '.join(source.schema.split())}" if source.schema else ""
    return f"{source.format}{where}{options}{schema}{', once' if source.static else ''}"


def _late_and_double(view: Source | Step) -> Iterator[str]:
    if view.watermark is not None:
        yield f"          rows may be {view.watermark.delay} late by {view.watermark.column}"
    if names(view.dedupe):
        yield f"          one row for each {', '.join(names(view.dedupe))}"


def _write(pipeline: Declared) -> Iterator[str]:
    write = pipeline.write
    yield (
        f"  write   {write.view} to "
        f"{write.sink}{', in place of the existing rows' if write.mode == 'overwrite' else ''}, "
        f"{_DELIVERY[write.delivery]}"
    )
    if names(write.key):
        order = (
            f", in the order of {', '.join(names(write.order_by))}" if names(write.order_by) else ""
        )
        yield f"          rows of one {', '.join(names(write.key))} by one task{order}"
        if write.latest_only:
            yield f"          only the last row of each {', '.join(names(write.key))}"
    for name, sink in pipeline.sinks.items():
        yield f"  sink    {name}: {_sink(sink)}"
        yield from _at_most_once(sink)
        for layer in sink.stack if isinstance(sink, Destination) else ():
            yield f"          in {_sink(layer)}"


def _at_most_once(sink: object) -> Iterator[str]:
    if not isinstance(sink, Destination):
        return
    if sink.kind == "udp":
        yield "          at most once: the arrival of a datagram is unknown"
    elif sink.kind == "nats" and sink.arguments.get("delivery") == "core":
        yield "          at most once: messages are not stored for absent subscribers"


def _sink(declared: object) -> str:
    if not isinstance(declared, (Destination, Layer)):
        return repr(declared)
    return f"{declared.kind}({_arguments(declared.arguments, declared.kind)})"


def _arguments(given: Mapping[str, object], kind: str = "") -> str:
    return ", ".join(f"{name}={_value(name, value, kind)}" for name, value in given.items())


def _value(name: str, value: object, kind: str) -> str:
    """Format the value; for an argument that may be secret, only a reference."""
    if _SECRET.search(name) and (kind, name) not in _NOT_SECRET:
        return value if isinstance(value, str) and _REFERENCE.fullmatch(value) else "..."
    if isinstance(value, Mapping):
        return f"{{{_arguments(cast('Mapping[str, object]', value))}}}"
    return repr(value)
