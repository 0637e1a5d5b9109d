"""Random tests of a queue, one rule at a time, at times that the rules set.

Producers insert in overlapping transactions that commit or roll back later. Consumers of two groups
claim, and settle any earlier lease: an ended one must be lost. After each claim the rows are
compared with the model in `queue_model`.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.postgres.queues.queue_help import at, queue
from tests.postgres.queues.queue_model import MAX_ATTEMPTS, Lease, Model, Produced

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Self, TypeVar

    from tests.postgres.queues.queue_help import Queue
    from tests.postgres.streams.log_help import Log

    T = TypeVar("T")

PRODUCERS = 3
KEYS = st.sampled_from(["a", "b", "c", None])
LANES = st.sampled_from(["a", "b", "c"])
WHO = st.sampled_from([("g", "one"), ("g", "two"), ("h", "one")])
POISONS = st.sampled_from(["skip", "block", "block_and_dead_letter", "park_key"])
CUTS = (0, 13000, 35000, 52000, 65536)  # the slots of "a", "b" and "c" are in different parts


class Setting:
    """A schema with connections, for all examples of a test."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.con: Any = None
        self.producers: list[Any] = []
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()

    def run(self, call: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await call

        return self._runner.run(awaited())

    def __enter__(self) -> Self:
        self._runner.__enter__()
        self.con, *self.producers = [
            self.run(self._stack.enter_async_context(self.log.connected()))
            for _ in range(PRODUCERS + 1)
        ]
        return self

    def __exit__(self, *exc: object) -> None:
        self.run(self._stack.aclose())
        self._runner.close()


class QueueMachine(RuleBasedStateMachine):
    """Rules for a queue; `sticky` queues also have ranges."""

    queue: Queue

    def __init__(self, setting: Setting, *, sticky: bool = False) -> None:
        super().__init__()
        self.setting = setting
        self.run = setting.run
        self.con = setting.con
        self.sticky = sticky
        self.model = Model()
        self.open: list[Any] = [None] * PRODUCERS
        self.now = 0.0

    @initialize(poison=POISONS)
    def create(self, poison: str) -> None:
        settings = {"poison": poison, "sticky": self.sticky, "max_attempts": MAX_ATTEMPTS}
        self.queue = self.run(queue(self.con, self.setting.log, **settings))
        self.model.poison = poison
        if self.sticky:
            self.assign([("one", "two")] * 4)
            self._assign("h", ["one"] * 4)

    # producers

    @rule(who=st.integers(0, PRODUCERS - 1), keys=st.lists(KEYS, min_size=1, max_size=3))
    def insert(self, who: int, keys: list[str | None]) -> None:
        jobs = self.model.produce(keys, who if self.open[who] else None)
        self._insert(who, jobs)

    @rule(who=st.integers(0, PRODUCERS - 1))
    def begin(self, who: int) -> None:
        if not self.open[who]:
            self.open[who] = self.setting.producers[who].transaction()
            self.run(self.open[who].start())

    @precondition(lambda self: any(self.open))
    @rule(who=st.integers(0, PRODUCERS - 1), keys=st.lists(KEYS, min_size=1, max_size=2))
    def insert_and_roll_back_to_a_savepoint(self, who: int, keys: list[str | None]) -> None:
        if self.open[who]:
            savepoint = self.setting.producers[who].transaction()
            self.run(savepoint.start())
            self._insert(who, [Produced(-1, key, who, 0) for key in keys])
            self.run(savepoint.rollback())

    @precondition(lambda self: any(self.open))
    @rule(who=st.integers(0, PRODUCERS - 1), commits=st.sampled_from([True, True, False]))
    def end(self, who: int, commits: bool) -> None:
        if self.open[who]:
            self.run(self.open[who].commit() if commits else self.open[who].rollback())
            self.open[who] = None
            self.model.end(who, commits=commits)

    @rule(key=KEYS, delay=st.sampled_from([1.0, 20.0]))
    def delay(self, key: str | None, delay: float) -> None:
        (job,) = self.model.produce([key], None)
        job.due = self.now + delay
        self.run(self.queue.enqueue(self.setting.con, (key, job.n), due=at(job.due)))

    # consumers

    @rule(who=WHO, lanes=st.sampled_from([1, 100]), per=st.sampled_from([1, 2, 5]))
    def claim(self, who: tuple[str, str], lanes: int, per: int) -> None:
        self._claim(who, lanes, per)

    @precondition(lambda self: self.model.leases)
    @rule(
        which=st.integers(0, 5),
        done=st.integers(0, 5),
        action=st.sampled_from(["free", "free", "keep", "nak", "fail", "bury"]),
    )
    def settle(self, which: int, done: int, action: str) -> None:
        self._settle(self.model.leases[-1 - which % len(self.model.leases)], action, done)

    @precondition(lambda self: self.model.leases)
    @rule(which=st.integers(0, 5))
    def extend(self, which: int) -> None:
        lease = self.model.leases[-1 - which % len(self.model.leases)]
        found = self.run(self.queue.extend(self.con, lease.all, now=self.now))
        assert found == ({lease.number} if lease.is_live(self.now) else set())
        if found:
            lease.until = self.now + 30

    @rule(seconds=st.sampled_from([1.0, 8.0, 31.0, -5.0]))
    def pass_time(self, seconds: float) -> None:
        """Move the clock, also back, unless this revives a lease that a claim may have taken from
        a parked key.
        """
        now = max(0.0, self.now + seconds)
        if not any(
            each.is_live(now) and each.until <= self.model.latest and each.key in self.model.stopped
            for each in self.model.leases
        ):
            self.now = now
            self.model.latest = max(self.model.latest, now)

    # operators

    @rule(key=LANES)
    def park(self, key: str) -> None:
        state = self.run(self.queue.call(self.con, "park_lane", key, "wish", at(self.now)))
        assert state == ("leased" if self.model.holder(key, self.now) else "parked")
        self.model.stopped.add(key)

    @precondition(lambda self: self.model.stopped)
    @rule(key=LANES, skips=st.booleans(), keeps=st.booleans())
    def resume(self, key: str, skips: bool, keeps: bool) -> None:
        state = self.run(self.queue.call(self.con, "resume_lane", key, skips, keeps, at(self.now)))
        self.model.resumed(key, state, self.now, skips=skips, keeps=keeps)
        if state == "dead":
            self.model.died(self._dead(), key)

    @precondition(lambda self: self.sticky)
    @rule(
        owners=st.lists(st.sampled_from([("one", "two"), ("two", "one")]), min_size=4, max_size=4)
    )
    def assign(self, owners: list[tuple[str, str]]) -> None:
        self._assign("g", [first for first, _ in owners])

    def _assign(self, group: str, owners: list[str]) -> None:
        """Assign the four parts of the ring to owners; adjacent parts of one owner become one
        range.
        """
        ranges: list[tuple[int, int, str]] = []
        for lo, end, owner in zip(CUTS[:-1], CUTS[1:], owners, strict=True):
            if ranges and ranges[-1][2] == owner:
                lo, *_ = ranges.pop()
            ranges.append((lo, end - 1, owner))
        self.run(self.queue.assign(self.con, *ranges, group=group))
        self.model.ranges[group] = ranges

    def _insert(self, who: int, jobs: list[Produced]) -> None:
        con = self.setting.producers[who]
        self.run(self.queue.enqueue(con, *((job.key, job.n) for job in jobs)))

    def _claim(self, who: tuple[str, str], lanes: int, per: int) -> int:
        group, consumer = who
        rows = self.run(
            self.queue.claim(
                self.con, consumer, lanes=lanes, per=per, loose=lanes, now=self.now, group=group
            )
        )
        due = self.now if self.now == self.model.latest else None
        wanted = self.model.claimable(due) if lanes > 10 and not self.sticky else set()
        stopped, dead = self._stopped(), self._dead()
        self.model.given_up(stopped, dead)
        for lease in self.model.claimed(rows, group, consumer, self.now):
            wanted.discard(lease.key)
        assert wanted <= self.model.stopped | self.model.with_dead, "a key was not given out"
        return len(rows)

    def _settle(self, lease: Lease, action: str, done: int) -> None:
        most = len(lease.jobs) - (action != "free")
        done = min(done, most) if lease.key is not None else int(action == "free" and done > 0)
        if done < 0:
            return
        attempts = self.model.attempts_of(lease, done)
        (fate,) = self.run(
            self.queue.settle(
                self.con, lease.jobs or lease.all, action, done=done, now=self.now, delay=5.0,
                attempts=attempts, reason="no",
            )
        )  # fmt: skip
        self.model.settled(lease, action, done, fate, self.now)
        self.model.given_up(self._stopped(), self._dead())

    def _stopped(self) -> set[str]:
        rows = self.run(
            self.con.fetch(
                f"SELECT key FROM {self.queue.sql}.lane WHERE queue = $1 AND state <> 0",
                self.queue.name,
            )
        )
        return {row["key"] for row in rows}

    def _dead(self) -> set[int]:
        rows = self.run(
            self.con.fetch(
                f"SELECT payload::text::int FROM {self.queue.sql}.finished_job WHERE queue = $1",
                self.queue.name,
            )
        )
        return {row[0] for row in rows}

    def teardown(self) -> None:
        """Every job ends: all transactions are committed, and all jobs resumed, claimed and
        settled.
        """
        if not hasattr(self, "queue"):
            return
        for who, transaction in enumerate(self.open):
            if transaction:
                self.end(who, True)
        if self.sticky:
            self._assign("g", ["one"] * 4)
        self.now = self.model.latest = self.model.latest + 100
        for key in sorted(self.model.stopped):
            self.resume(key, False, False)
        for _ in range(200):
            found = self._claim(("g", "one"), 100, 100)
            for lease in [*self.model.leases]:
                if lease.is_live(self.now):
                    self._settle(lease, "free", len(lease.jobs))
            self._resume_the_loose()
            for key in sorted(self.model.stopped):
                self.resume(key, False, False)
            if not found and not self.model.left():
                break
        assert self.model.left() == []
        for table in ("job", "bell", "lane"):
            assert self.run(self.queue.count(self.con, table)) == 0, table

    def _resume_the_loose(self) -> None:
        rows = self.run(
            self.con.fetch(
                f"SELECT place FROM {self.queue.sql}.job WHERE queue = $1 AND state <> 0",
                self.queue.name,
            )
        )
        places = [row["place"] for row in rows]
        self.run(self.queue.call(self.con, "retry_jobs", places))
        for job in self.model.jobs:
            if job.key is None:
                job.attempts = 0
