"""The settings of the pipes of a schedule, drawn from a seed.

White box: the names of strategies are private.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from sluicegate import Limits, RetryPolicy
from sluicegate.consumer import Commits

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Hashable

    from sluicegate.consumer.failures.poison import PoisonStrategy

BROKEN = "broken"
"""A key that the batcher's key function refuses."""


@dataclass(frozen=True, kw_only=True)
class PipeSetting:
    """The settings that both members share."""

    partitions: int
    keys: tuple[Hashable, ...]
    is_keyed: bool
    prefix_safe: bool
    workers: int
    max_items: int
    max_delay: float
    has_small_ledger: bool
    flush_timeout: float
    timeout: float | None
    """Seconds of the `Timeout` in the stack."""
    retry_attempts: int
    """Attempts of the `Retry` in the stack; 0: there is none."""
    attempts: int
    """The pipe's own attempts."""
    has_row_letters: bool
    has_record_letters: bool
    strategy: PoisonStrategy
    rows: Literal["the record", "one", "varied"]
    is_async: bool
    max_in_flight: int | None
    drain: float
    commit_every: float
    commit_seconds: float
    chunk: int
    trouble: float
    """The probability that a write fails."""
    poison: float
    """The probability that a row is refused permanently, and that a record cannot be transformed.
    """
    events: int

    @property
    def limits(self) -> Limits:
        """The limits of a batcher."""
        least = (self.workers + 1) * self.max_items
        return Limits(
            max_items=self.max_items,
            max_delay=self.max_delay,
            workers=self.workers,
            flush_timeout=self.flush_timeout,
            max_pending_items=least if self.has_small_ledger else None,
        )

    @property
    def key(self) -> Callable[[Any], Hashable] | None:
        """The key of a row."""
        return _key_of if self.is_keyed else None

    @property
    def gives_up_early(self) -> bool:
        """Whether rows are given up that the destination would accept later."""
        is_short = self.retry_attempts < PATIENT
        return self.attempts < PATIENT or (self.has_row_letters and is_short)

    @property
    def options(self) -> dict[str, Any]:
        """Further arguments of a pipe."""
        return {
            "retry": RetryPolicy(attempts=self.attempts, unlisted_attempts=self.attempts, backoff=_backoff),
            "in_flight": self.max_in_flight,
            "drain": self.drain,
            "commits": Commits(every=self.commit_every),
            "concurrency": 5,
        }  # fmt: skip


PATIENT = 1000
"""An attempt limit that is never reached."""


def drawn(rng: random.Random) -> PipeSetting:
    """Draw the settings."""
    choice = rng.choice
    strategies: tuple[PoisonStrategy, ...] = ("skip", "block", "block_and_dead_letter", "park_key")
    strategy = choice(strategies)
    setting = PipeSetting(
        partitions=rng.randint(1, 4),
        keys=choice((("a",), ("a", "b", None), tuple(range(30)))),
        is_keyed=rng.random() < 0.85,
        prefix_safe=choice((True, False)),
        workers=rng.randint(1, 4),
        max_items=choice((1, 2, 5, 20)),
        max_delay=choice((0.0, 0.02, 0.3)),
        has_small_ledger=choice((True, False)),
        flush_timeout=choice((1.0, 3.0)),
        timeout=choice((None, None, 0.7)),
        retry_attempts=choice((0, 2, PATIENT)),
        attempts=choice((3, PATIENT, PATIENT)),
        has_row_letters=rng.random() < 0.3,
        has_record_letters=strategy == "block_and_dead_letter" or choice((True, False)),
        strategy=strategy,
        rows=choice(("the record", "one", "varied", "varied")),
        is_async=choice((True, False)),
        max_in_flight=choice((None, 4, 15)),
        drain=choice((0.2, 1.0, 4.0)),
        commit_every=choice((0.05, 0.3, 1.0)),
        commit_seconds=choice((0.0, 0.0, 0.1)),
        chunk=choice((2, 10, 500)),
        trouble=choice((0.0, 0.05, 0.3)),
        poison=choice((0.0, 0.0, 0.05)),
        events=30,
    )
    if strategy != "park_key":
        return setting
    # a key is parked by its records' key, and rows that can never be written would stay parked
    rows: Literal["the record", "one"] = choice(("the record", "one"))
    return replace(setting, is_keyed=True, rows=rows, has_record_letters=False)


def _key_of(row: Any) -> Hashable:
    if row.key == BROKEN:
        raise ValueError("no key")
    return row.key  # type: ignore[no-any-return]


def _backoff(tries: int, error: BaseException | None = None, waited: float = 0.0) -> float:
    return min(2.0, 0.02 * 2.0 ** min(tries, 10))
