"""Results that a handler returns for a message.

A handler returns `None` (or `Ack()`) if it has handled the message, and any other result to decide
its treatment. An exception is a failed attempt, like `Nak()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..._core import checks
from ..._core.classify import caused
from ..._core.errors import PermanentError, StoppedError, TimedOutError

if TYPE_CHECKING:
    from datetime import timedelta

_NO_EXCEPTION = "exceptions must derive from BaseException"
"""Python's message for `raise` with any other object, such as a result."""


@dataclass(frozen=True, slots=True)
class Ack:
    """The message is handled, so its position may be passed."""


@dataclass(frozen=True, slots=True)
class Skip(Ack):
    """The message needs no handling, for example as a known duplicate. Like `Ack`, but counted
    separately.
    """


@dataclass(frozen=True, slots=True)
class Nak:
    """The message is not handled, and is retried.

    Args:
        delay: seconds (or a `timedelta`) until the next attempt; `None` uses the retry policy's
            backoff.
        error: the reason, for logs and dead letters.

    Counts as an attempt: after the last one the message is poison. Raises `ConfigError` for a
    negative or infinite delay.
    """

    delay: float | timedelta | None = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        if self.delay is not None:
            object.__setattr__(
                self,
                "delay",
                checks.seconds("delay", self.delay, zero=True, usual=checks.LONG_PERIOD),
            )


@dataclass(frozen=True, slots=True)
class ToDeadLetter:
    """Write this message to the dead letters, and continue with its key.

    Without dead letters the message is poison, as with `Terminate`.
    """

    reason: str = ""
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Terminate:
    """The message is poison and is not retried. The poison strategy decides about its key."""

    reason: str = ""
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Manual:
    """The message is settled later, by `message.settle(result)`. Its key waits until then."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """The event is completed later, by `context.job_complete(finalise)`. Later events in its order
    are handled meanwhile; the position does not pass it until it is complete.

    Only for `Consumer.run_events`.
    """


Result: TypeAlias = Ack | Nak | ToDeadLetter | Terminate | Manual | Incomplete

ACK = Ack()


class PoisonError(PermanentError):
    """A message that cannot be handled, regardless of retries."""


class DecodeError(PoisonError):
    """A message whose value or key cannot be decoded."""


class UndecodableError(DecodeError):
    """A message whose record could not be decoded by its source; no handler gets it."""


class BatchResultCountError(PoisonError):
    """A batch handler returned a wrong number of results, or no list of results."""


class ResultTypeError(PoisonError):
    """A handler, or a step before it, returned an object that is not a result."""


class SchemaError(PoisonError):
    """A message whose value was refused by a `check`."""


class NoHandlerError(PoisonError):
    """A message of a type without a handler."""


class HandlerTimeout(TimedOutError):
    """A handler was cancelled because it ran longer than the consumer's `timeout`."""


def cancelled_by_source() -> StoppedError:
    """Return the error of a message that its source has cancelled."""
    return StoppedError("cancelled by an operator")


def reason_of(result: ToDeadLetter | Terminate) -> BaseException:
    """Return the error of a message whose handler returned `ToDeadLetter` or `Terminate`."""
    return result.error or PoisonError(result.reason or "the handler rejected the message")


def no_result(returned: object) -> ResultTypeError:
    """Return the error of a message whose handler returned an object that is not a result."""
    kind = type(returned).__name__
    told = f"the class {returned.__name__}" if isinstance(returned, type) else f"a {kind}"
    rule = "return None, Ack(), Nak(), ToDeadLetter(), Terminate() or Manual()"
    return ResultTypeError(f"a handler returned {told}; {rule}")


def of_raised(error: BaseException) -> BaseException:
    """Return the error of a handler that raised; the same one unless it tried to raise a result."""
    if type(error) is not TypeError or str(error) != _NO_EXCEPTION:
        return error
    told = (
        "the function raised an object that is no exception; return a result, such as Nak() or "
        "ToDeadLetter(), and do not raise it"
    )
    return caused(ResultTypeError(told), error)
