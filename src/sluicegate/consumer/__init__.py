"""Consumers: handle the records of a source in order per key, and store correct positions.

| room | subject |
|---|---|
| `lanes` | the order of unsettled messages, and the capacity for them |
| `progress` | from the records of a source to the positions that it stores |
| `handling` | calls of the user's function, and their results |
| `failures` | poison, dead letters, parked keys |
| `jobs` | events that are completed later |
| `operating` | the state shown to operators |
| `memory` | a source in memory |

`consumer` is the front; `operated` is the part of it that a pipe shares, `settings` and `options`
are its arguments. `engine` runs the tasks, and `run` is the state that all rooms share. The
contract of sources is in `_core.source`.
"""

from typing import TYPE_CHECKING

from .._core.observer import ConsumerObserver
from .._core.park_store import ParkedRecord, ParkStore
from .._core.public import later, publish, publish_all
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
from .._core.subscriptions import Move, Subscribed, SubscriptionLocks, SubscriptionState
from ..letters.parked import MemoryParkStore
from .consumer import Consumer
from .handling.register import Envelope, HandlerRegister
from .handling.results import (
    Ack,
    BatchResultCountError,
    DecodeError,
    Manual,
    Nak,
    NoHandlerError,
    PoisonError,
    Result,
    ResultTypeError,
    Skip,
    Terminate,
    ToDeadLetter,
    UndecodableError,
)
from .handling.steps import Step, check, decode, skip_seen, with_steps
from .lanes.message import Message
from .operating.probes import probes, serve_probes
from .operating.report import DrainReport
from .options import Commits, InFlight, Keys, Poison

if TYPE_CHECKING:
    from .memory import MemoryLog, MemorySource, MemorySubscriptions
else:
    __getattr__, __dir__ = later(
        __name__,
        {"memory": ["MemoryLog", "MemorySource", "MemorySubscriptions"]},
    )

__all__ = [
    "BatchResultCountError",
    "ClaimHost",
    "Commits",
    "ConsumerObserver",
    "CountsLag",
    "DecodeError",
    "DrainReport",
    "Envelope",
    "ExtendsRecords",
    "Fetched",
    "HandlerRegister",
    "InFlight",
    "KeepsAlive",
    "Keys",
    "Manual",
    "MemoryLog",
    "MemoryParkStore",
    "MemorySource",
    "MemorySubscriptions",
    "Move",
    "NoHandlerError",
    "ParkStore",
    "ParkedRecord",
    "Poison",
    "PoisonError",
    "Position",
    "PositionStore",
    "Record",
    "ReplacesClaims",
    "Result",
    "ResultTypeError",
    "Settled",
    "Skip",
    "Source",
    "SourceCapabilities",
    "SourceClaim",
    "SourceRecord",
    "Step",
    "Subscribed",
    "SubscriptionLocks",
    "SubscriptionState",
    "TakesBack",
    "TopicPartition",
    "TransactionalSource",
    "UndecodableError",
    "UndecodableRecord",
    "Unread",
    "check",
    "decode",
    "probes",
    "serve_probes",
    "skip_seen",
    "with_steps",
]

publish("sluicegate", Ack, Consumer, Message, Nak, Terminate, ToDeadLetter)
publish_all(__name__)
