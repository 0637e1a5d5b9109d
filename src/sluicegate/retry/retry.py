"""The decorator that retries failed items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

from .._core import checks
from .._core.delivery.pacing import LONGEST_ASKED
from .._core.keywords import known_arguments
from .._core.retry_policy import Backoff, BackoffFunction, RetryPolicy
from .._core.sink import RefusesRetry, SinkDecorator, dead_letters_in, walk
from .backoff import WaitBackoff
from .batch_retry import RetrySettings
from .retrying import RetrySink

if TYPE_CHECKING:
    from datetime import timedelta

    from .._core.classify import Classifier
    from .._core.sink import Sink
    from .backoff import RetryBudget, TenacityWait

T = TypeVar("T")

OnRefused = Literal["wait", "dead_letter"]


@known_arguments()
class Retry(SinkDecorator):
    """Retry failed items that may succeed next time. Only these items are sent again, in order,
    each with its own attempts.

    Args:
        attempts: the maximum number of attempts per item; default 5.
        backoff: a `Backoff`, or any of tenacity's wait objects. Default: full jitter up to 0.1 s x
            2^n, at most 30 s.
        classify: a function from an exception to its `ErrorClass`, or `None` if it does not know
            the exception; called before the sink's own.
        max_seconds: the longest duration of a series of attempts, in seconds. A later attempt is
            not made, and the items fail with their last error. Waits for a throttling or
            unreachable destination do not count. Default: no limit.
        budget: a `RetryBudget`, shared by all batches and possibly by other retries; an empty
            budget counts as an outage. Default: no limit.
        give_up_after: seconds of an outage, or of uninterrupted throttling, after which a series
            ends and its items are given up: a `DeadLetter` outside takes them, otherwise they are
            `rejected`. Default: no limit.
        resend_unknown: whether an attempt with an unknown outcome is repeated (`True`, the default:
            at least once) or not (`False`: at most once).
        unlisted_attempts: attempts per item after an exception that no classifier knows; default 3.
        on_refused: the reaction to a destination that refuses every write (`RefusedError`: a login,
            a permission, a missing table, a full disk). `"wait"` (default) treats it as an outage.
            `"dead_letter"` gives the items up immediately.
        max_retry_after: the longest `Retry-After` that is followed, in seconds. Default 300.

    During a backoff the batch's flush slot serves other batches. A throttled destination receives
    no batch (with tenants: none of the throttled tenant) for its `Retry-After`, or for at least 5 s
    without one. An unreachable destination is probed by one batch at a time, at most 5 s apart, and
    the others wait for its success. Neither case uses up attempts.

    A destination that refuses every write is an outage as well, and the waiting batches take turns
    to probe it. After a probe whose whole write is refused, half of it is sent next, down to one
    item. An item that is refused alone repeatedly, with accepted writes in between, is at fault
    itself and leaves with a permanent error; its neighbours are delivered. Around a sink with
    several destinations (`Router`) there is no such search.

    When a shutdown begins, a backoff ends with one immediate attempt. More follow after shortened
    waits until none fits before the deadline. The remaining items were not applied, and
    end as `unsent`.

    A write with an unknown outcome counts as an attempt. If the sink can repeat a write without
    storing an item twice (`Capabilities.repeatable`), it is an outage instead, as long as no other
    write is accepted: no attempt is used, and one batch at a time probes.

    In a transaction, a write that failed without ending the transaction is retried, for example if
    a lock was not available. Locks are held during the wait. A lost transaction ends the series:
    only a new transaction can retry.

    Raises `ConfigError` for a bad argument.

    Examples:
        >>> import asyncio
        >>> from sluicegate import Retry, RowBatch, UnavailableError, send, stack
        >>> answers = iter([UnavailableError("connection refused"), None])
        >>> async def write(batch):
        ...     if error := next(answers):
        ...         raise error
        ...     print("wrote", *batch)
        >>> asyncio.run(send(stack(write, Retry(attempts=5)), RowBatch("ab")))
        wrote a b
        {}
    """

    def __init__(
        self,
        attempts: int = 5,
        *,
        backoff: Backoff | TenacityWait | None = None,
        classify: Classifier | None = None,
        max_seconds: float | timedelta | None = None,
        budget: RetryBudget | None = None,
        give_up_after: float | timedelta | None = None,
        resend_unknown: bool = True,
        unlisted_attempts: int = 3,
        on_refused: OnRefused = "wait",
        max_retry_after: float | timedelta = LONGEST_ASKED,
    ) -> None:
        if budget is not None and not callable(getattr(budget, "withdraw", None)):
            raise checks.bad("budget", budget, "must be a RetryBudget(...)")
        if backoff is not None and (isinstance(backoff, type) or not callable(backoff)):
            rule = "must be a Backoff, such as Backoff(base=0.5), or one of tenacity's wait objects"
            raise checks.bad("backoff", backoff, rule)
        rule = "must be a function from an exception to an ErrorClass or None"
        classify = checks.optional_function("classify", classify, rule)
        refused = checks.choice("on_refused", on_refused, ("wait", "dead_letter"))
        policy = RetryPolicy(
            attempts=checks.count("attempts", attempts),
            unlisted_attempts=checks.count("unlisted_attempts", unlisted_attempts),
            resend_unknown=checks.flag("resend_unknown", resend_unknown),
            max_seconds=checks.optional_seconds(
                "max_seconds", max_seconds, usual=checks.LONG_PERIOD
            ),
            give_up_after=checks.optional_seconds(
                "give_up_after", give_up_after, usual=checks.LONG_PERIOD
            ),
            max_retry_after=checks.seconds(
                "max_retry_after", max_retry_after, usual=checks.LONG_PERIOD
            ),
            backoff=_backoff_of(backoff),
        )
        self.settings = RetrySettings(
            policy,
            budget,
            classify,
            gives_up_refused=refused == "dead_letter",
        )

    def __call__(self, sink: Sink[T]) -> Sink[T]:
        """Wrap `sink`. Raises `ConfigError` around a sink that would repeat writes that have
        succeeded.
        """
        for part in walk(sink):
            if isinstance(part, RefusesRetry):
                raise checks.bad("Retry around", part, part.refuses_retry)
        letters = dead_letters_in(sink)
        if self.settings.policy.attempts > 1 and letters is not None and letters.takes_transient:
            checks.warn(
                "a DeadLetter inside a Retry takes each item after one failure, and leaves none to "
                "retry; write stack(sink, Retry(), DeadLetter(target)), or take=('permanent',)"
            )
        return RetrySink(sink, self.settings)

    def __repr__(self) -> str:
        return repr(self.settings)


def _backoff_of(given: Backoff | TenacityWait | None) -> BackoffFunction:
    if given is None:
        return Backoff()
    return given if isinstance(given, Backoff) else WaitBackoff(given)
