"""Consumers: handle the records of a source in order per key, and store correct positions.

Also the contract of sources and of their positions, and a source in memory.
"""

from typing import TYPE_CHECKING

from .._core.observer import ClaimChange, ConsumerObserver, ConsumerState, HandlerEnd, HandlerWatch
from .._core.park_store import ParkedRecord, ParkStore
from .._core.public import later, publish, publish_all
from .._core.retry_policy import BackoffFunction, RetryPolicy
from .._core.source import (
    ClaimHost,
    CountsLag,
    DeclaresCapabilities,
    ExtendsRecords,
    Fetched,
    KeepsAlive,
    Position,
    PositionStore,
    Record,
    ReplacesClaims,
    ReturnedAs,
    Settled,
    Source,
    SourceCapabilities,
    SourceClaim,
    SourceRecord,
    SourceTraits,
    TakesBack,
    TopicPartition,
    TransactionalSource,
    UndecodableRecord,
    Unread,
)
from .._core.subscriptions import (
    SLOTS,
    CountsMembers,
    Move,
    Subscribed,
    SubscriptionLocks,
    SubscriptionStart,
    SubscriptionState,
    locked_slot,
    slot_lock,
)
from ..letters.parked import MemoryParkStore
from .batching.batch_options import BatchOptions
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
from .settings import ConsumerOptions
from .stats import ConsumerStats, InFlight, PartitionStats
from .stepping import Step, with_steps
from .steps import check, decode, decode_by, skip_seen
from .unparking import Unparked
from .wait_reason import WaitCause, WaitReason

if TYPE_CHECKING:
    from .memory import Crashed, MemoryLog, MemorySource, MemorySubscriptions
else:
    __getattr__, __dir__ = later(
        __name__,
        {"memory": ["Crashed", "MemoryLog", "MemorySource", "MemorySubscriptions"]},
        elsewhere={
            ".files": ["FileSource"],
            ".kafka": ["ConfluentKafkaSource", "KafkaSource"],
            ".nats": ["JetStreamSource"],
            ".postgres": ["PostgresQueueSource", "PostgresStreamSource"],
        },
    )

__all__ = [
    "SLOTS",
    "Ack",
    "Attempts",
    "BackoffFunction",
    "BatchHandler",
    "BatchOptions",
    "BatchResultCountError",
    "BlockedMessage",
    "ClaimChange",
    "ClaimHost",
    "Consumer",
    "ConsumerObserver",
    "ConsumerOptions",
    "ConsumerState",
    "ConsumerStats",
    "CountsLag",
    "CountsMembers",
    "Crashed",
    "DeclaresCapabilities",
    "DecodeError",
    "Decoder",
    "Deliveries",
    "DrainReport",
    "Envelope",
    "Explanation",
    "ExtendsRecords",
    "Fetched",
    "Finaliser",
    "HandlerEnd",
    "HandlerRegister",
    "HandlerTimeout",
    "HandlerWatch",
    "Health",
    "InFlight",
    "KeepsAlive",
    "Lag",
    "Manual",
    "MemoryLog",
    "MemoryParkStore",
    "MemorySource",
    "MemorySubscriptions",
    "Message",
    "MessageCounts",
    "MessageHandler",
    "Move",
    "Nak",
    "NoHandlerError",
    "OldestRecord",
    "Operated",
    "ParkStore",
    "ParkedRecord",
    "PartitionExplanation",
    "PartitionStats",
    "PoisonError",
    "Position",
    "PositionStore",
    "Probes",
    "Record",
    "RegisteredCall",
    "ReplacesClaims",
    "Result",
    "ResultTypeError",
    "RetryPolicy",
    "ReturnedAs",
    "SchemaError",
    "Settled",
    "Skip",
    "Source",
    "SourceCapabilities",
    "SourceClaim",
    "SourceRecord",
    "SourceTraits",
    "Step",
    "Subscribed",
    "SubscriptionLocks",
    "SubscriptionStart",
    "SubscriptionState",
    "TakesBack",
    "Terminate",
    "ToDeadLetter",
    "TopicPartition",
    "TransactionalSource",
    "UndecodableError",
    "UndecodableRecord",
    "Unfinished",
    "Unparked",
    "Unread",
    "WaitCause",
    "WaitReason",
    "check",
    "decode",
    "decode_by",
    "locked_slot",
    "probes",
    "serve_probes",
    "skip_seen",
    "slot_lock",
    "with_steps",
]

publish("sluicegate", Ack, Consumer, Message, Nak, RetryPolicy, Terminate, ToDeadLetter)
publish_all(__name__)
