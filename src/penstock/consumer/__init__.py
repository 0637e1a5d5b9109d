"""The consumer: the records of a source, in order per key, with positions that never lie."""

from .._core.public import publish
from .._core.retry_policy import DoublingBackoff, RetryPolicy
from .consumer import Consumer
from .counts import MessageCounts
from .message import Message
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

__all__ = [
    "Ack",
    "BatchResultCountError",
    "Consumer",
    "DecodeError",
    "DoublingBackoff",
    "DrainReport",
    "FullJitter",
    "Manual",
    "Message",
    "MessageCounts",
    "Nak",
    "PoisonError",
    "Result",
    "ResultTypeError",
    "RetryPolicy",
    "Terminate",
    "ToDeadLetter",
    "Unfinished",
]

publish("penstock", Ack, Consumer, Manual, Message, Nak, RetryPolicy, Terminate, ToDeadLetter)
publish(
    __name__,
    BatchResultCountError,
    DecodeError,
    DoublingBackoff,
    DrainReport,
    FullJitter,
    MessageCounts,
    PoisonError,
    ResultTypeError,
    Unfinished,
)
