"""Group members, each a pipe from a log in memory into one destination.

White box: the time that cancelled handlers have to end, and the type of a report.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pipe_troubles import RecordLetters, RowLetters, TruthfulSink

from sluicegate import Backoff, Batcher, DeadLetter, Retry, Timeout, flow, stack
from sluicegate.consumer import ConsumerObserver, MemoryLog, MemoryParkStore, MemorySource, Poison
from sluicegate.consumer.progress.draining import GRACE

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence

    from pipe_settings import PipeSetting
    from pipe_troubles import Weather
    from pipe_truth import Truth

    from sluicegate.consumer import ClaimHost, ParkedRecord, Position, SourceClaim, TopicPartition
    from sluicegate.flow.pipe import PipeReport
    from sluicegate.testing import FakeClock


GROUP = "members"
"""The name of all pipes; they share parked records under it."""


class TruthfulLog(MemoryLog):
    """A log that reports each stored position."""

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        super().__init__(partitions=partitions)
        self.truth: Truth | None = None

    def store(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Store and report positions."""
        super().store(positions)
        if self.truth is not None:
            self.truth.stored(positions)


class TruthfulStore(MemoryParkStore):
    """A park store that outlives the members and reports each parked record."""

    is_durable = True

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self._truth = truth

    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        """Park and report records."""
        await super().park(group, key, records)
        for record in records:
            self._truth.parks((record.partition, record.offset))

    @property
    def has_records(self) -> bool:
        """Whether anything is parked."""
        return any(self._groups.values())


class WatchedHost:
    """A host between a source and its real host."""

    def __init__(
        self, host: ClaimHost, member: str, truth: Truth, clock: FakeClock, drain: float
    ) -> None:
        self._host = host
        self._member = member
        self._truth = truth
        self._clock = clock
        self._drain = drain
        self.claims: list[SourceClaim] = []
        """All claims that it has had."""

    @property
    def room_bytes(self) -> int:
        """Forward the room of the consumer."""
        return self._host.room_bytes

    def assigned(self, starts: Mapping[TopicPartition, Position]) -> Sequence[SourceClaim]:
        """Begin claims."""
        claims = self._host.assigned(starts)
        self.claims += claims
        self._truth.assigned(self._member, claims, starts)
        return claims

    async def revoked(
        self, claims: Collection[SourceClaim], within: float
    ) -> Mapping[SourceClaim, Position]:
        """Revoke claims."""
        self._truth.closing(self._member, claims)
        until = self._clock.now() + min(within, self._drain) + GRACE
        positions = await self._host.revoked(claims, within)
        if self._clock.now() > until + 1e-6:
            self._truth.complain("late", f"a revoke of {self._member}")
        self._truth.returned(self._member, positions)
        return positions

    def ended(self, claims: Collection[SourceClaim]) -> None:
        """End claims."""
        self._truth.ended(self._member, claims)
        self._host.ended(claims)

    def cancelled(self, claim: SourceClaim, offsets: Collection[int]) -> None:
        """Forward cancelled records."""
        self._host.cancelled(claim, offsets)

    def reported(self, trouble: str | None) -> None:
        """Forward a reported problem."""
        self._host.reported(trouble)


class WatchedSource(MemorySource):
    """A source whose claims are observed; its partitions are assigned by the test."""

    def __init__(
        self, log: MemoryLog, member: str, truth: Truth, clock: FakeClock, drain: float, **options: Any
    ) -> None:  # fmt: skip
        super().__init__(log, partitions=[], clock=clock, **options)
        self._make: Callable[[ClaimHost], WatchedHost] = lambda host: WatchedHost(
            host, member, truth, clock, drain
        )
        self.watched: WatchedHost | None = None

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncGenerator[None]:
        """Join the group."""
        self.watched = self._make(host)
        async with super().open(self.watched):
            yield


class Poisoned(ConsumerObserver):
    """Reports records that a pipe gives up without a dead letter."""

    def __init__(self, truth: Truth, *, gives_up: bool) -> None:
        self._truth = truth
        self._gives_up = gives_up

    def on_poison(self, name: str, message: Any, error: BaseException, action: str) -> None:
        """Report a record that cannot be handled."""
        if self._gives_up and action == "skip":
            self._truth.gave_up((message.claim.partition.partition, message.offset))


class Member:
    """One run of one process."""

    def __init__(
        self,
        name: str,
        setting: PipeSetting,
        log: TruthfulLog,
        truth: Truth,
        weather: Weather,
        clock: FakeClock,
        rng: random.Random,
        transform: Any,
        store: TruthfulStore,
    ) -> None:
        self.name = name
        self._setting = setting
        self._clock = clock
        self._truth = truth
        self.source = WatchedSource(
            log, name, truth, clock, setting.drain, chunk=setting.chunk,
            commit_seconds=setting.commit_seconds,
        )  # fmt: skip
        self.sink = TruthfulSink(name, truth, weather, clock, prefix_safe=setting.prefix_safe)
        self.sink.gives_up = setting.gives_up_early
        self.letters = RowLetters(truth)
        record_letters = RecordLetters(truth, settles=setting.strategy == "skip")
        self.batcher: Batcher[Any] = Batcher(
            self._stack(rng),
            key=setting.key,
            limits=setting.limits,
            shutdown_deadline=1.0,
            clock=clock,
            name=name,
        )
        self.pipe = flow.pipe(
            self.source,
            self.batcher,
            transform,
            name=GROUP,
            poison=Poison(
                setting.strategy,
                dead_letters=record_letters if setting.has_record_letters else None,
                parked=store if setting.strategy == "park_key" else None,
            ),
            observers=[Poisoned(truth, gives_up=not setting.has_record_letters)],
            **setting.options,
        )
        self.is_stopping = self.is_dead = False
        self.task = asyncio.create_task(self.pipe.run(), name=name)

    def _stack(self, rng: random.Random) -> Any:
        setting, decorators = self._setting, list[Any]()
        if setting.timeout is not None:
            decorators.append(Timeout(setting.timeout))
        if setting.retry_attempts:
            backoff = Backoff(base=0.05, longest=2.0, rng=rng)
            decorators.append(Retry(attempts=setting.retry_attempts, backoff=backoff))
        if setting.has_row_letters:
            decorators.append(DeadLetter(self.letters))
        return stack(self.sink, *decorators) if decorators else self.sink

    @property
    def is_open(self) -> bool:
        """Whether it can receive partitions."""
        is_joined = self.source.watched is not None and not self.task.done()
        return is_joined and not (self.is_stopping or self.is_dead)

    def stop(self) -> None:
        """Begin the drain."""
        self.is_stopping = True
        self.pipe.stop()

    async def crash(self) -> None:
        """Crash: writes at the destination may still be applied; nothing new begins."""
        self.is_dead = self.sink.is_dead = True
        self.source.crash()
        self.task.cancel()
        await self._clock.sleep(0)
        self.task.cancel()

    async def end(self) -> None:
        """Wait for the end and check the counts."""
        await asyncio.wait([self.task])
        if self.is_dead:
            self._check_batcher()
            return
        if self.task.cancelled() or self.task.exception() is not None:
            self._truth.complain("failed", f"{self.name} ended: {self.task!r}")
            return
        self._check_batcher()
        self._check_counts(self.task.result())

    def _check_batcher(self) -> None:
        report = self.batcher.report
        if report is None:
            self._truth.complain("miscounted", f"{self.name} has not shut its batcher down")
            return
        try:
            report.verify()
        except AssertionError as error:
            self._truth.complain("miscounted", f"{self.name}: {error}")

    def _check_counts(self, report: PipeReport) -> None:
        """Check that the counts agree with the destination and the claims."""
        complain, truth = self._truth.complain, self._truth
        tally, least = report.batcher.tally, truth.acks[self.name]
        if not least <= tally.delivered <= least + truth.cut_acks[self.name]:
            complain("miscounted", f"{self.name}: {tally.delivered} delivered, and not {least}")
        if tally.dead_lettered != self.letters.count:
            complain("miscounted", f"{self.name}: {tally.dead_lettered} letters of rows")
        counts = report.source.counts
        told = (
            counts.parked + counts.acked + counts.skipped + counts.dead_lettered + counts.terminated
        )
        claims: list[Any] = [] if self.source.watched is None else self.source.watched.claims
        settled = sum([claim.tracker.settled - claim.replay.skipped for claim in claims])
        # a record given up during its replay was settled when it was parked
        again = counts.terminated if counts.unparked else 0
        if not settled <= told <= settled + again:
            complain("miscounted", f"{self.name}: {counts}, and {settled} are settled")
        self._check_empty()

    def _check_empty(self) -> None:
        stats = self.pipe.stats()
        if stats.source.in_flight.messages or stats.source.in_flight.bytes:
            self._truth.complain("left inside", f"{self.name}: {stats.source.in_flight}")

    @property
    def inside(self) -> str:
        """A description of the contents; empty if there are none."""
        stats, left = self.pipe.stats(), dict[str, Any]()
        pump: Any = self.pipe._engine and self.pipe._engine.workers._work
        if pump is not None:
            left = {name: kept for name, kept in vars(pump.ends._held).items() if name != "_key_of"}
        gatherer: Any = self.batcher._dispatcher.gathering.gatherer
        left |= {
            "messages": stats.source.in_flight.messages,
            "rows": stats.batcher.tally.inside,
            "writes": stats.batcher.in_flight_batches,
            "held keys": stats.batcher.held_keys,
            "keys": getattr(gatherer, "active", None),
        }
        return f"{self.name}: {left}" if any(left.values()) else ""
