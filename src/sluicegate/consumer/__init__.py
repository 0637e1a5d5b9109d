"""Consumers: handle the records of a source in order per key, and store correct positions."""

from .._core.consumer_observer import (
    ClaimChange,
    ConsumerObserver,
    ConsumerState,
    HandlerEnd,
    HandlerWatch,
)
from .._core.park_store import ParkedRecord, ParkStore
from .._core.public import publish, publish_all
from .._core.retry_policy import BackoffFunction, DoublingBackoff, RetryPolicy
from ..letters.parked import MemoryParkStore
from .batching.batch_options import BatchOptions
from .by_type import HandlersByType
from .claim import Attempts
from .consumer import Consumer
from .counts import MessageCounts
from .crash_window import Deliveries
from .explain import Explanation, OldestRecord, PartitionExplanation
from .handlers import BatchHandler, MessageHandler
from .health import Health
from .hints import Envelope
from .lag import Lag
from .message import Finaliser, Message
from .operated import Operated
from .probe_app import Probes, probes
from .probe_server import serve_probes
from .register import Decoder, HandlerRegister, RegisteredCall
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
    UndecodableError,
)
from .settings import ConsumerOptions, FullJitter
from .stats import ConsumerStats, InFlight, PartitionStats
from .stepping import Step, with_steps
from .steps import check, decode, decode_by, skip_seen
from .unparking import Unparked
from .wait_reason import WaitCause, WaitReason

__all__ = [
    "Ack",
    "Attempts",
    "BackoffFunction",
    "BatchHandler",
    "BatchOptions",
    "BatchResultCountError",
    "BlockedMessage",
    "ClaimChange",
    "Consumer",
    "ConsumerObserver",
    "ConsumerOptions",
    "ConsumerState",
    "ConsumerStats",
    "DecodeError",
    "Decoder",
    "Deliveries",
    "DoublingBackoff",
    "DrainReport",
    "Envelope",
    "Explanation",
    "Finaliser",
    "FullJitter",
    "HandlerEnd",
    "HandlerRegister",
    "HandlerTimeout",
    "HandlerWatch",
    "HandlersByType",
    "Health",
    "InFlight",
    "Lag",
    "Manual",
    "MemoryParkStore",
    "Message",
    "MessageCounts",
    "MessageHandler",
    "Nak",
    "NoHandlerError",
    "OldestRecord",
    "Operated",
    "ParkStore",
    "ParkedRecord",
    "PartitionExplanation",
    "PartitionStats",
    "PoisonError",
    "Probes",
    "RegisteredCall",
    "Result",
    "ResultTypeError",
    "RetryPolicy",
    "SchemaError",
    "Skip",
    "Step",
    "Terminate",
    "ToDeadLetter",
    "UndecodableError",
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

publish("sluicegate", Ack, Consumer, Manual, Message, Nak, RetryPolicy, Terminate, ToDeadLetter)
publish_all(__name__)
