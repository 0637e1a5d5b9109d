"""Watching a consumer: a few synchronous callbacks, none of them per message unless asked for.

1. A consumer without observers pays nothing for them, and one with observers nothing per message:
   counts and levels are read from its `stats()`.
2. Only an observer that returns something from `handling`, once per run, is called for every turn
   of a handler: tracing, durations.
3. An observer that raises is logged once and never hurts the consumer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from .checks import bad, optional_seconds
from .observer import Observer, Watchers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .source import TopicPartition

ConsumerState = Literal[
    "opening", "ready", "not_ready", "stalled", "moving", "draining", "closed",
]  # fmt: skip
"""What `on_state` reports."""
ClaimChange = Literal["assigned", "revoked", "lost"]
HandlerOutcome = Literal[
    "ack", "skip", "nak", "dead_letter", "terminate", "manual", "mixed", "invalid", "error",
]  # fmt: skip


class HandlerEnd(NamedTuple):
    """How a turn of a handler, with its steps, has ended."""

    outcome: HandlerOutcome
    """`ack` for `None` too; `mixed` for a batch in which not all are acknowledged; `invalid` for
    what is no result; `error` for an exception."""
    error: BaseException | None
    """What it raised, or the error of its result."""
    seconds: float


HandlerWatch: TypeAlias = "Callable[[Sequence[Any]], Callable[[HandlerEnd], None] | None]"
"""Called with the messages of a turn when it begins; what it returns is called at its end, in the
same task. Several watches end in the reverse order."""


class ConsumerObserver:
    """A watcher of a consumer that does nothing; override what you need.

    Callbacks run in the consumer's loop and must return quickly. One that raises is logged once and
    never hurts the consumer. A `KeyboardInterrupt` or `SystemExit` ends the loop, as soon as the
    consumer has finished its step.
    """

    lag_every: float | None = None
    """Seconds between two requests for the source's ends, so that `stats().lags` shows the lag;
    `None` if this observer needs none. The shortest of all observers counts."""

    def on_open(self, name: str, stats: Callable[[], Any]) -> None:
        """The consumer `name` opens; `stats()` returns its `ConsumerStats`, from any thread.

        Hold it weakly (`WeakMethod`), so that a dropped consumer can be collected.
        """

    def on_state(self, name: str, state: ConsumerState) -> None:
        """The consumer is now in this state.

        `opening`, `draining` and `closed` are told at once; `ready`, `not_ready`, `stalled` and
        `moving` (stalled no more) within a second.
        """

    def on_claims(
        self, name: str, change: ClaimChange, partitions: Sequence[TopicPartition]
    ) -> None:
        """Partitions were assigned to this process, are being revoked, or were lost."""

    def on_committed(
        self,
        name: str,
        offsets: Mapping[TopicPartition, int],
        error: BaseException | None,
    ) -> None:
        """Positions were committed. With an error the commit failed; it may have been stored.

        Not told of a revoke, in which the source commits by itself.
        """

    def on_poison(self, name: str, message: Any, error: BaseException, action: str) -> None:
        """A message cannot be handled; `action` is the poison strategy, or `dead_letter` if its
        handler asked for that.
        """

    def handling(self, name: str, *, is_batch: bool) -> HandlerWatch | None:
        """Called once, when `run` or `run_batch` begins: return what is to be called for every turn
        of the handler, or `None`.
        """
        return None


class ConsumerObservers(Watchers[ConsumerObserver]):
    """The observers of a consumer."""

    @property
    def lag_every(self) -> float | None:
        """The shortest time between two samples of the lag; `None` if no observer wants any."""
        wanted = [optional_seconds("lag_every", each.lag_every) for each in self]
        return min((every for every in wanted if every is not None), default=None)


def checked_consumer_observers(given: object) -> tuple[ConsumerObserver, ...]:
    """The observers of an argument. Raises `ConfigError`."""
    if isinstance(given, (ConsumerObserver, type, str, bytes)) or not hasattr(given, "__iter__"):
        raise bad("observers", given, "must be a list of observers: observers=[observer]")
    observers = tuple(cast("Iterable[Any]", given))
    for place, observer in enumerate(observers):
        if not isinstance(observer, ConsumerObserver):
            raise bad(f"observers[{place}]", observer, _rule(observer))
        optional_seconds(f"observers[{place}].lag_every", observer.lag_every)
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
