"""The errors of Sluicegate, one tree.

    SluicegateError
    ├── ConfigError (ValueError)          the caller's mistake: a bad argument; nothing has been started
    │   └── UnitRefused                   the caller's mistake: the ledger has this version in another form, or no longer
    ├── NonDeterministicReplay            the caller's mistake: other rows under the name of committed rows
    ├── StagesLost                        rows were lost, or the destination was changed, before publication; nothing was published
    ├── MissingExtra (ImportError)        the caller's mistake: an optional dependency is not installed
    ├── MissingJars (RuntimeError)        the caller's mistake: Maven is missing, or cannot provide the jars
    ├── NotPicklableError (TypeError)     the caller's mistake: an argument of a sink cannot be pickled
    ├── ForkedError                       the caller's mistake: used in a forked child
    ├── NoSuchKey (LookupError)           the caller's mistake: no message of that key is blocked or parked
    ├── ClosedError                       our state: the batcher is closed, or not yet open
    │   └── BatcherBroken                 our state: stopped by on_failure="crash", or by a bug of ours
    ├── KeyFailedError                    our state: an earlier item of the key has failed, and on_key_failure="fail"
    ├── AddTimeout (TimeoutError)         our state: no capacity in time; carries retry_after
    │   └── LedgerFull                    our state: overflow="reject" and the ledger is full
    ├── ItemTooLarge (ValueError)         the caller's mistake: larger than the ledger, or than oversize="reject" allows
    ├── DrainTimeout (TimeoutError)       our state: a shutdown ended with items left; carries the report
    ├── ItemFailed                        raised by deliver and receipts: the outcome and its cause
    ├── ItemsFailed                       raised by run: items ended rejected, unsent or unknown; carries the reports
    ├── DeliverTimeout (TimeoutError)     the item was accepted, and has no outcome in time; carries the receipt
    └── SinkError                         the destination
        ├── PermanentError                retrying does not help
        │   ├── TooLargeError             too large for one write; a smaller one may be accepted
        │   ├── VersionConflict           a stream is not at the expected version; carries the actual one
        │   ├── MessageIdConflict         a message with this id is already in the log, with other contents
        │   ├── KeyRepeated               an earlier item of the batch has its key; certainly not applied
        │   └── ParkedBehind              dead-lettered behind a failed item of its key
        ├── TransientError                a retry may succeed; counts as an attempt
        │   └── UnavailableError          not reachable; does not count as an attempt
        │       ├── RefusedError          reachable, but refuses every write until an operator repairs it; names the repair
        │       └── CircuitOpenError      not attempted: the breaker is open; carries retry_after
        ├── ThrottledError                slow down; carries retry_after; does not count as an attempt
        ├── UnknownOutcomeError           the write may or may not have been applied
        │   ├── TimedOutError             cut off because it took too long
        │   ├── UnverifiableError         an earlier attempt may have been applied; the destination cannot tell
        │   │   └── StoredRowDiffers      other contents are stored under its key; sending again does not help
        │   └── ResultMismatch            an answer that does not fit its batch; never resent automatically
        └── StoppedError                  abandoned because the batcher is stopping; not applied
            ├── DeadLetterLimit           too many dead letters: the batcher stops
            ├── KeyStopped                not applied, since an earlier item of its key failed
            ├── TransactionLost           the transaction has ended; none of it was applied
            ├── PositionLost              another process took over a source's position; nothing was applied
            └── WithdrawnError            withdrawn by the source of the item

Only errors of the last branch concern the destination, and only these can be retried. Errors of
client libraries keep their types: a sink's `classify` returns their class. If one of ours is raised
instead, the original is its `__cause__`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from .text import repr_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .outcome import Outcome


class SluicegateError(Exception):
    """Base class of all errors that Sluicegate raises."""


class ConfigError(SluicegateError, ValueError):
    """A bad argument: the message names it, its value and the rule. Nothing has been started."""


class SluicegateWarning(UserWarning):
    """A likely mistake that is not an error. The message says what to write instead.

    The category of all warnings of Sluicegate, except the `ResourceWarning` for a batcher that was
    garbage-collected with pending items.
    """


class UnitRefused(ConfigError):
    """The ledger refuses a unit.

    Its version was divided into other parts, by another rule or by other types; or is older than
    the oldest version in the ledger; or was committed to a table that has since been dropped and
    recreated.
    """


class NonDeterministicReplay(SluicegateError):
    """A committed unit was replayed with different rows: their source is not deterministic."""


class StagesLost(SluicegateError):
    """Staged rows were lost (a crash, a failover), changed, or no longer fit the target.

    Nothing was published, and publishing again does not help: repeat the whole write. The message
    names the stages.
    """


class MissingExtra(SluicegateError, ImportError):
    """An optional dependency is not installed, or has a version that Sluicegate cannot use.

    Raised where it is needed: by the constructor of a class, by a call, or when a file is opened.
    Importing a public name never raises it. The message gives the package, the extra that provides
    it, and the command; `name` is the missing module.
    """


class MissingJars(SluicegateError, RuntimeError):
    """Maven cannot provide the jars. The message gives the reason and the remedy."""


class NotPicklableError(SluicegateError, TypeError):
    """An argument of a sink cannot be pickled. The message names it and a form that can be."""


class ForkedError(SluicegateError):
    """A batcher was used in a child process that was forked after it was opened."""


class NoSuchKey(SluicegateError, LookupError):
    """No message of this key is blocked or parked. The error message names the keys that are."""


class ClosedError(SluicegateError):
    """The batcher is closed (or was never opened) and does not accept items."""


class BatcherBroken(ClosedError):
    """The batcher stopped for good: at an internal failure, or at a failed item with
    `on_failure="crash"`. The `__cause__` is its error.
    """


class KeyFailedError(SluicegateError):
    """An item of the key failed for good, and later ones fail too (`on_key_failure="fail"`).

    `resume(key)` ends this. `tenant` is the key's tenant if the batcher has tenants, otherwise
    `None`.
    """

    def __init__(self, key: object, tenant: object = ...) -> None:
        whose = "" if tenant is ... else f" of tenant {repr_of(tenant)}"
        call = "resume(key)" if tenant is ... else "resume(key, tenant=...)"
        super().__init__(
            f"an earlier item of the key {repr_of(key)}{whose} has failed for good; later ones are "
            f"refused until {call}"
        )
        self.key = key
        self.tenant = None if tenant is ... else tenant


class AddTimeout(SluicegateError, TimeoutError):
    """No capacity became free in time; the item was not accepted. Retry after `retry_after` s."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class LedgerFull(AddTimeout):
    """The ledger is full and `overflow="reject"`; the item was not accepted."""


class ItemTooLarge(SluicegateError, ValueError):
    """The item is larger than the whole ledger, or than `max_bytes` with `oversize="reject"`."""


class DrainTimeout(SluicegateError, TimeoutError):
    """A shutdown ended with items left; `report` counts and lists them by state."""

    def __init__(self, report: object) -> None:
        super().__init__(f"the drain was incomplete: {report}")
        self.report = report


class ItemFailed(SluicegateError):
    """An accepted item was not stored at its destination: its `outcome` is not a success.

    Dead-lettered items are included: they are safe, but not stored. The error of the item, if
    known, is the `__cause__`.
    """

    def __init__(self, outcome: Outcome, cause: BaseException | None = None) -> None:
        why = f": {repr_of(cause)}" if cause is not None else ""
        super().__init__(f"item ended {outcome.value}{why}")
        self.outcome = outcome
        self.__cause__ = cause


class ItemsFailed(SluicegateError):
    """Items of the batchers of a `run` ended rejected, unsent or unknown.

    `reports` are the batchers' shutdown reports, at most 20. The errors of the items are in the
    log, in their receipts, and were passed to `on_failure`.
    """

    def __init__(self, reports: Iterable[Any], judged: Iterable[Outcome]) -> None:
        self.reports = tuple(reports)
        counts = {
            outcome: sum(report.tally.of(outcome) for report in self.reports) for outcome in judged
        }
        failed = {outcome.value: count for outcome, count in counts.items() if count}
        given = ", ".join(f"{count} {name}" for name, count in failed.items())
        whose = "; ".join(f"batcher {report.name!r}: {report.tally}" for report in self.reports)
        names = "".join(f'"{name}", ' for name in failed)
        super().__init__(
            f"items failed ({given}); the log has their errors; if this is expected, use "
            f"run(..., accept=({names.rstrip() if len(failed) == 1 else names[:-2]})); {whose}"
        )


class DeliverTimeout(SluicegateError, TimeoutError):
    """An item was accepted, and has no outcome in time. It is still written: do not send it again.

    `receipt` is the item's `Receipt`, or its `BlockingReceipt` in threads: wait for the outcome
    there.
    """

    def __init__(self, receipt: Any, seconds: float) -> None:
        super().__init__(
            f"the item was accepted, and has no outcome after {seconds:g} s; it is still written: "
            "wait for this error's receipt, and do not send the item again"
        )
        self.receipt = receipt


class SinkError(SluicegateError):
    """An error of the destination, or raised on its behalf.

    `summary` is the text for log lines if the message may contain item values (a server's
    DETAIL, the body of a response); `None` if the message itself is safe to log. Dead letters and
    receipts always have the complete error.
    """

    summary: str | None = None


class PermanentError(SinkError):
    """The item or batch is refused, and would be refused again. Never retried."""


class TooLargeError(PermanentError):
    """A write was larger than the destination accepts; a smaller one may be accepted."""


class VersionConflict(PermanentError):
    """A stream was not at the expected version: another transaction has appended to it.

    Nothing was appended. Read the stream again, repeat the decision, and append in a new
    transaction. Version -1 means that the stream does not exist.
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
    """A different message with the same id is already in the log.

    Nothing was appended. `stream` is the stream of the attempted append.
    """

    def __init__(self, stream: str, why: str) -> None:
        super().__init__(
            f"stream {stream!r}: {why}; an id identifies one message: a retry must append the same "
            "messages, and other messages need their own ids"
        )
        self.stream = stream


class KeyRepeated(PermanentError):
    """Refused: an earlier item of the batch has the same key, and is stored or may be.

    No attempt has applied the item, not even one with an unknown outcome.
    """

    def __init__(self, key: str) -> None:
        super().__init__(
            f"an earlier item of the same batch has the same key ({key}), and is stored or may be; "
            "this one is not: give each item its own key"
        )


class TransientError(SinkError):
    """A failure that may not recur in a later attempt. Counts as an attempt."""


class UnavailableError(TransientError):
    """The destination is unreachable (connection refused, DNS, starting up).

    Nothing was applied. Does not count as an attempt. `perhaps_of_item` means that one item may be
    the cause, such as one that crashes the server behind a proxy: `Retry` searches the batch for
    it, as for a refusal.
    """

    retry_after: float | None = None
    perhaps_of_item = False

    def __init__(self, *args: object, perhaps_of_item: bool = False) -> None:
        super().__init__(*args)
        if perhaps_of_item:
            self.perhaps_of_item = True


class RefusedError(UnavailableError):
    """The destination refuses every write: a login, a permission, a missing table, a full disk.

    Nothing was applied. Handled as an outage: it uses up no attempts, one batch at a time probes,
    and producers wait. `repair` is the operator's remedy in one sentence, such as `grant INSERT on
    table "events" to role "app"`; logs show it. `of_item` means that the destination has responded
    for each item separately: others may have been accepted, and no retry searches the batch for the
    cause.
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
    """The destination throttles. The wait is at least `retry_after` seconds, if it is set."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnknownOutcomeError(SinkError):
    """The write was cut off, and may or may not have been applied."""


class TimedOutError(UnknownOutcomeError):
    """The write was cut off because it took too long, or its response did not arrive in time."""


class UnverifiableError(UnknownOutcomeError):
    """Not resent: an earlier attempt may have been applied, and the destination cannot tell.

    A pipe nevertheless sends the row again, as after a restart: its records are delivered at least
    once.
    """


class StoredRowDiffers(UnverifiableError):
    """An earlier attempt may have been applied, but the key's stored row has other contents.

    Either another writer stored that row, and the item was never applied; or the item was applied,
    and a trigger, an ingest pipeline or a later writer has changed it. No retry sends the item
    again: compare the item with the stored row, and correct one of them. In a pipe its record is
    poison, and a dead letter of it is marked `maybe_delivered`.
    """


class ResultMismatch(UnknownOutcomeError):
    """A sink's answer does not fit its batch. Unsettled items are unknown, and are not resent.

    The answer is a return value of `write` or a call of `settle` that has an index out of range or
    a repeated one, an outcome that is not a success, or an error that is not an exception.
    """


class StoppedError(SinkError):
    """Abandoned before it was applied, because the batcher is stopping. The outcome is `unsent`."""


class DeadLetterLimit(StoppedError):
    """Too many items failed for good; the batcher stops, to protect a valid stream of items."""


class TransactionLost(StoppedError):
    """The transaction has ended, and none of it was applied. Retry in a new transaction."""


class PositionLost(StoppedError):
    """Another process took over or changed a source's position; nothing was applied."""


class KeyStopped(StoppedError):
    """Not applied, since an earlier item of its key failed. Its error is the `__cause__`."""


class WithdrawnError(StoppedError):
    """Not sent again, since the item was withdrawn by its source."""


class ParkedBehind(PermanentError):
    """Dead-lettered after an earlier item of its key, whose error is the `__cause__`."""


class ErrorClass(enum.Enum):
    """How an error affects retries."""

    __hash__ = object.__hash__  # one C call; Enum's own hash is Python code

    PERMANENT = "permanent"
    TRANSIENT = "transient"
    THROTTLE = "throttle"
    UNAVAILABLE = "unavailable"
    REFUSED = "refused"
    """The destination refuses every write until an operator repairs it; see `RefusedError`."""
    DEADLOCK = "deadlock"
    """The destination has undone the write to resolve a deadlock with another one. Uses no attempt
    as long as a smaller write may avoid the next deadlock.
    """
    UNKNOWN = "unknown"
    STOPPED = "stopped"
    UNLISTED = "unlisted"
    """An unknown exception: treated as transient, with fewer attempts."""


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
    """Return the class of one of our own errors; `UNLISTED` for every other exception."""
    for kind, answer in _CLASSES:
        if isinstance(error, kind):
            return answer
    return ErrorClass.UNLISTED
