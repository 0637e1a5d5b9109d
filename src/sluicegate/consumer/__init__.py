"""Consumers: handle the records of a source in order per key, and store correct positions.

| room | subject |
|---|---|
| `lanes` | the order of the messages inside, and the room for them |
| `progress` | from the records of a source to the positions that it stores |
| `handling` | calls of the user's function, and their results |
| `failures` | poison, dead letters, parked keys |
| `jobs` | events that are completed later |
| `operating` | what operators see |
| `memory` | a source in memory |

`consumer` is the front; `operated` is the part of it that a pipe shares, `settings` and `options`
are its arguments. `engine` runs the tasks, and `run` is what all rooms share. The contract of
sources is in `_core.source`.
"""

from typing import TYPE_CHECKING

from .._core.observer import ClaimChange, ConsumerObserver, ConsumerState, HandlerEnd, HandlerWatch
from .._core.park_store import ParkedRecord, ParkStore
from .._core.public import later, publish, publish_all
from .._core.retry_policy import BackoffFunction, RetryPolicy
from .._core.source import (
    ClaimHost,
    CountsLag,
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
from .consumer import Consumer
from .failures.parking import Unparked
from .handling.handlers import BatchHandler, MessageHandler
from .handling.register import Decoder, Envelope, HandlerRegister, RegisteredCall
from .handling.results import (
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
from .handling.steps import Step, check, decode, decode_by, skip_seen, with_steps
from .lanes.message import Finaliser, Message
from .operating.explain import Explanation, OldestRecord, PartitionExplanation
from .operating.health import Health, Lag
from .operating.probes import Probes, probes, serve_probes
from .operating.report import BlockedMessage, DrainReport, Unfinished
from .operating.stats import ConsumerStats, InFlightStats, PartitionStats
from .options import Commits, InFlight, Keys, Poison
from .progress.claim import Attempts
from .progress.claims import Deliveries
from .run import MessageCounts

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
    "BatchResultCountError",
    "BlockedMessage",
    "ClaimChange",
    "ClaimHost",
    "Commits",
    "Consumer",
    "ConsumerObserver",
    "ConsumerState",
    "ConsumerStats",
    "CountsLag",
    "CountsMembers",
    "Crashed",
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
    "InFlightStats",
    "KeepsAlive",
    "Keys",
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
    "ParkStore",
    "ParkedRecord",
    "PartitionExplanation",
    "PartitionStats",
    "Poison",
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
