"""The id of the current trace."""

from __future__ import annotations

import sys
from typing import Any


def trace_id() -> str | None:
    """Return the current trace's id as 32 hexadecimal digits; `None` outside a trace, or if
    OpenTelemetry is not loaded.
    """
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None
