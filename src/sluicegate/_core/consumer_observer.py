"""Observers of a consumer: a few synchronous callbacks, none of them per message by default.

1. Without observers there is no cost, and with observers none per message: counts and levels are
   read from the consumer's `stats()`.
2. Only an observer whose `handling`, called once per run, returns a callback is called for every
   turn of a handler: for tracing and durations.
3. The first error of an observer is logged; errors never affect the consumer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from .checks import ANY_LENGTH, LONG_TIMEOUT, bad, optional_seconds
from .observer import Observer, Watchers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .source import TopicPartition

ConsumerState = Literal[
    "opening", "ready", "not_ready", "stalled", "moving", "draining", "closed",
]  # fmt: skip
"""The states that `on_state` reports."""
ClaimChange = Literal["assigned", "revoked", "lost"]
"""The changes that `on_claims` reports."""
HandlerOutcome = Literal[
    "ack", "skip", "nak", "dead_letter", "terminate", "manual", "mixed", "invalid", "error",
]  # fmt: skip


class HandlerEnd(NamedTuple):
    """The end of a handler's turn, including its steps."""

    outcome: HandlerOutcome
    """`ack` also for `None`; `mixed` for a batch that is not acknowledged in full; `invalid` for a
    return value that is not a result; `error` for an exception.
    """
    error: BaseException | None
    """The exception it raised, or the error of its result."""
    seconds: float


HandlerWatch: TypeAlias = "Callable[[Sequence[Any]], Callable[[HandlerEnd], None] | None]"
"""Called with the messages of a turn when it begins. The returned function is called when the turn
ends, in the same task; with several observers, in reverse order.
"""


class ConsumerObserver:
    """Base class of consumer observers; all methods do nothing. Override what you need.

    Callbacks run in the consumer's loop and must return quickly. The first exception is logged;
    exceptions never affect the consumer. A `KeyboardInterrupt` or `SystemExit` ends the loop as
    soon as the consumer has finished its current step.
    """

    lag_every: float | None = None
    """Interval, in seconds, at which the ends of the source's partitions are requested for
    `stats().lags`; `None` if this observer does not need the lag. The shortest interval of all
    observers is used.
    """

    def on_open(self, name: str, stats: Callable[[], Any]) -> None:
        """The consumer `name` is opening; `stats()` returns its `ConsumerStats`, from any thread.

        Hold it weakly (`WeakMethod`), so that a dropped consumer can be collected.
        """

    def on_state(self, name: str, state: ConsumerState) -> None:
        """The consumer has entered this state.

        `opening`, `draining` and `closed` are reported immediately; `ready`, `not_ready`, `stalled`
        and `moving` (no longer stalled) within a second.
        """

    def on_claims(
        self, name: str, change: ClaimChange, partitions: Sequence[TopicPartition]
    ) -> None:
        """Partitions have been assigned to this process, are being revoked, or have been lost."""

    def on_committed(
        self,
        name: str,
        offsets: Mapping[TopicPartition, int],
        error: BaseException | None,
    ) -> None:
        """Positions were committed. With an `error`, the commit failed, but may have been stored.

        Not called for a revoke in which the source commits by itself.
        """

    def on_poison(self, name: str, message: Any, error: BaseException, action: str) -> None:
        """A message cannot be handled; `action` is the poison strategy, or `dead_letter` if its
        handler requested that.
        """

    def handling(self, name: str, *, is_batch: bool) -> HandlerWatch | None:
        """Called once, when `run` or `run_batch` begins.

        Return the function to call for every turn of the handler, or `None`.
        """
        return None


class ConsumerObservers(Watchers[ConsumerObserver]):
    """The observers of a consumer."""

    @property
    def lag_every(self) -> float | None:
        """The shortest lag interval of all observers; `None` if none of them needs the lag."""
        wanted = [optional_seconds("lag_every", each.lag_every, usual=ANY_LENGTH) for each in self]
        return min((every for every in wanted if every is not None), default=None)


def checked_consumer_observers(given: object) -> tuple[ConsumerObserver, ...]:
    """Check an `observers` argument. Raises `ConfigError`."""
    if isinstance(given, (ConsumerObserver, type, str, bytes)) or not hasattr(given, "__iter__"):
        raise bad("observers", given, "must be a list of observers: observers=[observer]")
    observers = tuple(cast("Iterable[Any]", given))
    for place, observer in enumerate(observers):
        if not isinstance(observer, ConsumerObserver):
            raise bad(f"observers[{place}]", observer, _rule(observer))
        optional_seconds(f"observers[{place}].lag_every", observer.lag_every, usual=LONG_TIMEOUT)
    return observers


def _rule(observer: object) -> str:
    if isinstance(observer, type) and issubclass(observer, ConsumerObserver):
        return f"is a class; pass an instance: {observer.__name__}()"
    if isinstance(observer, Observer) or (
        isinstance(observer, type) and issubclass(observer, Observer)
    ):
        return (
            "watches batchers; pass a ConsumerObserver, such as PrometheusConsumerObserver() or "
            "OpenTelemetryConsumerObserver()"
        )
    return "must be a ConsumerObserver, such as PrometheusConsumerObserver() or ConsumerTracing()"
