"""The consumer: the records of a source, in order per key, with positions that never lie."""

from .._core.public import publish
from .._core.retry_policy import DoublingBackoff, RetryPolicy
from .consumer import Consumer
from .counts import MessageCounts
from .crash_window import Deliveries
from .explain import Explanation, OldestRecord, PartitionExplanation
from .health import Health
from .lag import Lag
from .message import Message
from .probe_app import Probes, probes
from .probe_server import serve_probes
from .report import DrainReport, Unfinished
from .results import (
    Ack,
    BatchResultCountError,
    DecodeError,
    Manual,
    Nak,
    PoisonError,
    Result,
    ResultTypeError,
    Terminate,
    ToDeadLetter,
)
from .settings import FullJitter
from .stats import ConsumerStats, InFlight, PartitionStats
from .wait_reason import WaitCause, WaitReason

__all__ = [
    "Ack",
    "BatchResultCountError",
    "Consumer",
    "ConsumerStats",
    "DecodeError",
    "Deliveries",
    "DoublingBackoff",
    "DrainReport",
    "Explanation",
    "FullJitter",
    "Health",
    "InFlight",
    "Lag",
    "Manual",
    "Message",
    "MessageCounts",
    "Nak",
    "OldestRecord",
    "PartitionExplanation",
    "PartitionStats",
    "PoisonError",
    "Probes",
    "Result",
    "ResultTypeError",
    "RetryPolicy",
    "Terminate",
    "ToDeadLetter",
    "Unfinished",
    "WaitCause",
    "WaitReason",
    "probes",
    "serve_probes",
]

publish("penstock", Ack, Consumer, Manual, Message, Nak, RetryPolicy, Terminate, ToDeadLetter)
publish(
    __name__,
    BatchResultCountError,
    ConsumerStats,
    DecodeError,
    Deliveries,
    DoublingBackoff,
    DrainReport,
    Explanation,
    FullJitter,
    Health,
    InFlight,
    Lag,
    MessageCounts,
    OldestRecord,
    PartitionExplanation,
    PartitionStats,
    PoisonError,
    Probes,
    ResultTypeError,
    Unfinished,
    WaitCause,
    WaitReason,
    probes,
    serve_probes,
)
