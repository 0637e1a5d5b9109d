"""Sinks that wrap one sink."""

from ..._core.public import publish, publish_all
from ...letters.letter import DeadLetterRecord
from .combine import Combine
from .dead_letter import DeadLetter
from .isolate import Isolate
from .meter import Rate
from .rate_limit import RateLimit
from .split import Split
from .timeout import Timeout

__all__ = [
    "Combine",
    "DeadLetter",
    "DeadLetterRecord",
    "Isolate",
    "Rate",
    "RateLimit",
    "Split",
    "Timeout",
]

publish("sluicegate.sinks", Rate)
publish_all(__name__, "sluicegate")
