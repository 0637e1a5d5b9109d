"""Consumers: handle the records of a source in order per key, and store correct positions."""

from .._core.consumer_observer import ConsumerObserver, HandlerEnd
from .._core.park_store import ParkedRecord, ParkStore
from .._core.public import publish
from .._core.retry_policy import DoublingBackoff, RetryPolicy
from ..letters.parked import MemoryParkStore
from .by_type import HandlersByType
from .consumer import Consumer
from .counts import MessageCounts
from .crash_window import Deliveries
from .explain import Explanation, OldestRecord, PartitionExplanation
from .health import Health
from .hints import Envelope
from .lag import Lag
from .message import Message
from .probe_app import Probes, probes
from .probe_server import serve_probes
from .register import HandlerRegister
from .report import BlockedMessage, DrainReport, Unfinished
from .results import (
    Ack,
    BatchResultCountError,
    DecodeError,
    HandlerTimeout,
    Manual,
    Nak,
    NoHandlerError,
    PoisonError,
    Result,
    ResultTypeError,
    SchemaError,
    Skip,
    Terminate,
    ToDeadLetter,
)
from .settings import FullJitter
from .stats import ConsumerStats, InFlight, PartitionStats
from .stepping import with_steps
from .steps import check, decode, decode_by, skip_seen
from .unparking import Unparked
from .wait_reason import WaitCause, WaitReason

__all__ = [
    "Ack",
    "BatchResultCountError",
    "BlockedMessage",
    "Consumer",
    "ConsumerObserver",
    "ConsumerStats",
    "DecodeError",
    "Deliveries",
    "DoublingBackoff",
    "DrainReport",
    "Envelope",
    "Explanation",
    "FullJitter",
    "HandlerEnd",
    "HandlerRegister",
    "HandlerTimeout",
    "HandlersByType",
    "Health",
    "InFlight",
    "Lag",
    "Manual",
    "MemoryParkStore",
    "Message",
    "MessageCounts",
    "Nak",
    "NoHandlerError",
    "OldestRecord",
    "ParkStore",
    "ParkedRecord",
    "PartitionExplanation",
    "PartitionStats",
    "PoisonError",
    "Probes",
    "Result",
    "ResultTypeError",
    "RetryPolicy",
    "SchemaError",
    "Skip",
    "Terminate",
    "ToDeadLetter",
    "Unfinished",
    "Unparked",
    "WaitCause",
    "WaitReason",
    "check",
    "decode",
    "decode_by",
    "probes",
    "serve_probes",
    "skip_seen",
    "with_steps",
]

publish("penstock", Ack, Consumer, Manual, Message, Nak, RetryPolicy, Terminate, ToDeadLetter)
publish(
    __name__,
    BatchResultCountError,
    BlockedMessage,
    ConsumerObserver,
    ConsumerStats,
    DecodeError,
    Deliveries,
    DoublingBackoff,
    DrainReport,
    Envelope,
    Explanation,
    FullJitter,
    HandlerEnd,
    HandlerTimeout,
    HandlerRegister,
    HandlersByType,
    Health,
    InFlight,
    Lag,
    MemoryParkStore,
    MessageCounts,
    NoHandlerError,
    OldestRecord,
    ParkStore,
    ParkedRecord,
    PartitionExplanation,
    PartitionStats,
    PoisonError,
    Probes,
    ResultTypeError,
    SchemaError,
    Skip,
    Unfinished,
    Unparked,
    WaitCause,
    WaitReason,
    probes,
    serve_probes,
    check,
    decode,
    decode_by,
    skip_seen,
    with_steps,
)
