"""The consumer: the records of a source, in order per key, with positions that never lie."""

from .._core.public import publish
from .._core.retry_policy import DoublingBackoff, RetryPolicy
from .by_type import HandlersByType
from .consumer import Consumer
from .counts import MessageCounts
from .message import Message
from .report import DrainReport, Unfinished
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
from .stepping import with_steps
from .steps import check, decode, decode_by, skip_seen

__all__ = [
    "Ack",
    "BatchResultCountError",
    "Consumer",
    "DecodeError",
    "DoublingBackoff",
    "DrainReport",
    "FullJitter",
    "HandlerTimeout",
    "HandlersByType",
    "Manual",
    "Message",
    "MessageCounts",
    "Nak",
    "NoHandlerError",
    "PoisonError",
    "Result",
    "ResultTypeError",
    "RetryPolicy",
    "SchemaError",
    "Skip",
    "Terminate",
    "ToDeadLetter",
    "Unfinished",
    "check",
    "decode",
    "decode_by",
    "skip_seen",
    "with_steps",
]

publish("penstock", Ack, Consumer, Manual, Message, Nak, RetryPolicy, Terminate, ToDeadLetter)
publish(
    __name__,
    BatchResultCountError,
    DecodeError,
    DoublingBackoff,
    DrainReport,
    FullJitter,
    HandlerTimeout,
    HandlersByType,
    MessageCounts,
    NoHandlerError,
    PoisonError,
    ResultTypeError,
    SchemaError,
    Skip,
    Unfinished,
    check,
    decode,
    decode_by,
    skip_seen,
    with_steps,
)
