"""The errors of Penstock, one tree.

    PenstockError
    ├── ConfigError (ValueError)          the caller's mistake: a bad argument; nothing has been started
    │   └── UnitRefused                   the caller's mistake: the ledger knows this version otherwise, or no longer
    ├── NonDeterministicReplay            the caller's mistake: other rows under the name of rows that are committed
    ├── StagesLost                        the destination lost rows, or was altered, before they were published; nothing was
    ├── MissingExtra (ImportError)        the caller's mistake: an optional dependency is not installed
    ├── MissingJars (RuntimeError)        the caller's mistake: no Maven, or Maven cannot get what is needed
    ├── NotPicklableError (TypeError)     the caller's mistake: a description holds an argument that cannot travel
    ├── ForkedError                       the caller's mistake: used in a forked child
    ├── NoSuchKey (LookupError)           the caller's mistake: no message of that key is blocked, or parked
    ├── ClosedError                       our state: the batcher is closed, or not yet open
    │   └── BatcherBroken                 our state: stopped by on_failure="crash", or by a bug of ours
    ├── KeyFailedError                    our state: an earlier item of the key has failed, and on_key_failure="fail"
    ├── AddTimeout (TimeoutError)         our state: no room in time; carries retry_after
    │   └── LedgerFull                    our state: overflow="reject" and the ledger is full
    ├── ItemFunctionError                 the caller's mistake: key=, tenant= or size_of= raised for the item
    ├── ItemTooLarge (ValueError)         the caller's mistake: larger than the ledger, or than oversize="reject" allows
    ├── DrainTimeout (TimeoutError)       our state: shutdown ended with items left; carries the report
    ├── ItemFailed                        what awaiting a receipt raises: the outcome and its cause
    └── SinkError                         the destination
        ├── PermanentError                trying again does not help
        │   ├── TooLargeError             too much in one write; less of it may be taken
        │   ├── VersionConflict           a stream is not at the expected version; carries the actual one
        │   ├── MessageIdConflict         a message of this id is in the log already, with other contents
        │   └── ParkedBehind              kept in order behind an item of its key that failed
        ├── TransientError                may work next time; counts as an attempt
        │   └── UnavailableError          not reachable; does not count as an attempt
        │       ├── RefusedError          reachable, and refuses everything until an operator repairs it; names the repair
        │       └── CircuitOpenError      not tried: the breaker is open; carries retry_after
        ├── ThrottledError                slow down; carries retry_after; does not count as an attempt
        ├── UnknownOutcomeError           the write may or may not have been applied
        │   ├── TimedOutError             cut off because it took too long
        │   ├── UnverifiableError         an earlier try may have been applied, and the destination cannot tell
        │   └── ResultMismatch            an answer that does not fit its batch; never sent again by itself
        └── StoppedError                  given up because the batcher is stopping; not applied
            ├── DeadLetterLimit           too much goes to the dead letters: the batcher stops
            ├── KeyStopped                left out, since an earlier item of its key failed
            ├── TransactionLost           the transaction is gone, and nothing of it was applied
            └── WithdrawnError            taken back by the source that had submitted the item

Only the last branch is about the destination, and only there does the question of trying again
arise. Errors of client libraries keep their identity: a sink's `classify` returns their class, and
where one of ours is raised instead, theirs is its `__cause__`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from .text import repr_of

if TYPE_CHECKING:
    from .outcome import Outcome


class PenstockError(Exception):
    """Base of every error that Penstock raises."""


class ConfigError(PenstockError, ValueError):
    """A bad argument: the message names it, its value and the rule. Nothing has been started."""


class PenstockWarning(UserWarning):
    """A likely mistake that is no error: the message says what to write. Category of all warnings
    of Penstock but the `ResourceWarning` of a batcher that was dropped with items inside.
    """


class UnitRefused(ConfigError):
    """The ledger refuses a unit.

    Its version was cut into other parts, by another rule or by other types, is older than the
    ledger's oldest, or was committed to a table that was since dropped and created again.
    """


class NonDeterministicReplay(PenstockError):
    """A committed unit was replayed with other rows: their source is not deterministic."""


class StagesLost(PenstockError):
    """Staged rows were lost (a crash, a failover), changed, or no longer fit the target.

    Nothing was published, and publishing again does not help: run the whole write again. The
    message names the stages.
    """


class MissingExtra(PenstockError, ImportError):
    """An optional dependency is not installed. The message is the command that installs it."""


class MissingJars(PenstockError, RuntimeError):
    """Maven cannot provide the jars. The message gives the reason and the remedy."""


class NotPicklableError(PenstockError, TypeError):
    """An argument of a sink cannot be pickled. The message names it and the form that can."""


class ForkedError(PenstockError):
    """A batcher was used in a forked child of the process that opened it."""


class NoSuchKey(PenstockError, LookupError):
    """No message of this key is blocked, or parked. The message names those that are."""


class ClosedError(PenstockError):
    """The batcher is closed (or was never opened) and takes no items."""


class BatcherBroken(ClosedError):
    """Stopped for good: `on_failure="crash"` met a failure, whose error is the `__cause__`."""


class KeyFailedError(PenstockError):
    """An item of the key failed for good, and `on_key_failure="fail"`: later ones fail too.

    `resume(key)` ends that. `tenant` is the key's tenant, where the batcher has tenants; `None`
    otherwise.
    """

    def __init__(self, key: object, tenant: object = ...) -> None:
        whose = "" if tenant is ... else f" of tenant {repr_of(tenant)}"
        call = "resume(key)" if tenant is ... else "resume(key, tenant=...)"
        super().__init__(
            f"an earlier item of the key {repr_of(key)}{whose} has failed for good; later ones "
            f"are not taken until {call}"
        )
        self.key = key
        self.tenant = None if tenant is ... else tenant


class AddTimeout(PenstockError, TimeoutError):
    """No room in time; the item was not accepted. Suggest `retry_after` seconds to a client."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class LedgerFull(AddTimeout):
    """The ledger is full and `overflow="reject"`; the item was not accepted."""


class ItemTooLarge(PenstockError, ValueError):
    """An item larger than the whole ledger, or than `max_bytes` with `oversize="reject"`."""


class ItemFunctionError(PenstockError):
    """A function of an item (`key=`, `tenant=`, `size_of=`) raised, and the item was not accepted.

    The function's exception is the `__cause__`.
    """


class DrainTimeout(PenstockError, TimeoutError):
    """A shutdown ended with items left; `report` counts and lists them by state."""

    def __init__(self, report: object) -> None:
        super().__init__(f"the drain was incomplete: {report}")
        self.report = report


class ItemFailed(PenstockError):
    """An item did not reach its destination: its `outcome`; the `__cause__` is a known error."""

    def __init__(self, outcome: Outcome, cause: BaseException | None = None) -> None:
        why = f": {repr_of(cause)}" if cause is not None else ""
        super().__init__(f"item ended {outcome.value}{why}")
        self.outcome = outcome
        self.__cause__ = cause


class SinkError(PenstockError):
    """An error of the destination, or on its behalf.

    `summary` is the text for log lines where the message may hold an item's values (a server's
    DETAIL, an answer's body); `None` where the message itself is safe to log. Dead letters and
    receipts always get the whole error.
    """

    summary: str | None = None


class PermanentError(SinkError):
    """The item or batch is refused, and will be again. Not tried again."""


class TooLargeError(PermanentError):
    """One write was more than the destination takes at once; a smaller one may be taken."""


class VersionConflict(PermanentError):
    """A stream was not at the expected version: another transaction has appended to it.

    Nothing was appended. Read the stream again, decide again, and append in a new transaction. A
    version of -1 means that the stream does not exist.
    """

    def __init__(self, stream: str, *, expected: int, actual: int) -> None:
        told, found = (
            "does not exist" if version < 0 else f"is at version {version}"
            for version in (expected, actual)
        )
        super().__init__(
            f"stream {stream!r}: expected that it {told}, but it {found}; read it again, and append "
            "in a new transaction"
        )
        self.stream = stream
        self.expected = expected
        self.actual = actual


class MessageIdConflict(PermanentError):
    """A message with the id of a new one is in the log already, and is another message.

    Nothing was appended. `stream` is the stream that was appended to.
    """

    def __init__(self, stream: str, why: str) -> None:
        super().__init__(
            f"stream {stream!r}: {why}; an id stands for one message, so a retry must append the "
            "same messages, and other messages need ids of their own"
        )
        self.stream = stream


class TransientError(SinkError):
    """A failure that a later try may overcome. Counts as an attempt."""


class UnavailableError(TransientError):
    """Not reachable (refused, DNS, starting up); nothing was applied. Not counted as an attempt."""

    retry_after: float | None = None


class RefusedError(UnavailableError):
    """The destination refuses every write: a login, a permission, a missing table, a full disk.

    Nothing was applied. Handled as an outage: it uses up no attempts, one batch at a time probes,
    and producers wait. `repair` is the operator's remedy in one sentence, such as `grant INSERT on
    table "events" to role "app"`; logs show it. `of_item` means that the destination has answered
    for each item: others may have been accepted, and no retry searches the batch for the cause.
    """

    def __init__(self, message: str, *, repair: str = "", of_item: bool = False) -> None:
        super().__init__(f"{message}; to repair: {repair}" if repair else message)
        self.repair = repair
        self.of_item = of_item


class CircuitOpenError(UnavailableError):
    """The destination was not called: a circuit breaker is open for `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ThrottledError(SinkError):
    """The destination throttles. Its `retry_after` in seconds, if any, is a floor on the wait."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnknownOutcomeError(SinkError):
    """The write was cut off: it may have been applied, or not."""


class TimedOutError(UnknownOutcomeError):
    """The write took too long and was cut off, or its answer did not come in time."""


class UnverifiableError(UnknownOutcomeError):
    """Not sent again: an earlier try may have been applied, and the destination cannot tell.

    A pipe sends the row again all the same, as after a restart: its records are delivered at least
    once.
    """


class ResultMismatch(UnknownOutcomeError):
    """A sink's answer does not fit its batch; unsettled items are unknown, and not sent again.

    The answer is a return value of `write`, or a call of `settle`: with an index outside the batch
    or repeated, with an outcome that is no success, or with an error that is no exception.
    """


class StoppedError(SinkError):
    """Given up because the batcher is stopping, before the write was applied. Ends as `unsent`."""


class DeadLetterLimit(StoppedError):
    """Too many items failed for good: the batcher stops instead of dead-lettering a good stream."""


class TransactionLost(StoppedError):
    """The transaction is gone, and nothing of it was applied. Retry in a new transaction."""


class PositionLost(StoppedError):
    """A source's position was taken over or changed by another process: nothing was applied."""


class KeyStopped(StoppedError):
    """Not applied, since an earlier item of its key failed, whose error is the `__cause__`."""


class WithdrawnError(StoppedError):
    """Not sent again, since its source has withdrawn the item."""


class ParkedBehind(PermanentError):
    """Dead-lettered behind an earlier item of its key, whose error is the `__cause__`."""


class ErrorClass(enum.Enum):
    """The effect of an error on the next try."""

    __hash__ = object.__hash__  # one C call; Enum's own hashes the name, in Python

    PERMANENT = "permanent"
    TRANSIENT = "transient"
    THROTTLE = "throttle"
    UNAVAILABLE = "unavailable"
    REFUSED = "refused"
    """The destination refuses every write until an operator repairs it; see `RefusedError`."""
    UNKNOWN = "unknown"
    STOPPED = "stopped"
    UNLISTED = "unlisted"
    """An unknown exception: transient, with a small number of attempts."""


_CLASSES: tuple[tuple[type[BaseException], ErrorClass], ...] = (
    (StoppedError, ErrorClass.STOPPED),
    (UnknownOutcomeError, ErrorClass.UNKNOWN),
    (RefusedError, ErrorClass.REFUSED),
    (UnavailableError, ErrorClass.UNAVAILABLE),
    (ThrottledError, ErrorClass.THROTTLE),
    (TransientError, ErrorClass.TRANSIENT),
    (PermanentError, ErrorClass.PERMANENT),
)


def classify(error: BaseException) -> ErrorClass:
    """The class of one of our own errors; `UNLISTED` for every other exception."""
    for kind, answer in _CLASSES:
        if isinstance(error, kind):
            return answer
    return ErrorClass.UNLISTED
