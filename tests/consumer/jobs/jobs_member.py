"""One process of the random tests of jobs: a consumer of events whose functions check the laws on
each call and follow the script of their record.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from jobs.jobs_script import DRAIN, Script, Work
from tests.machine.consumer_machine import place_of

from sluicegate import Backoff, ClosedError, Consumer, Nak, RetryPolicy, Terminate, ToDeadLetter
from sluicegate.consumer import MemorySource
from sluicegate.consumer.jobs import (
    BatchItems,
    Incomplete,
    Interjector,
    ItemBatcher,
    JobScheduler,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from jobs.jobs_script import JobsTruth, Setting

    from sluicegate import Message
    from sluicegate.consumer import DrainReport, TopicPartition
    from sluicegate.consumer.jobs import BatchItem, EventContext
    from sluicegate.testing import FakeClock


class JobsMember:
    """A consumer of events with two schedulers, a batcher, and interjections."""

    def __init__(self, truth: JobsTruth, setting: Setting, clock: FakeClock) -> None:
        self.truth = truth
        self.setting = setting
        self.clock = clock
        self.source = MemorySource(truth.log, partitions=[], clock=clock)
        self.consumer = Consumer(
            self.source,
            clock=clock,
            ordering=setting.ordering,  # type: ignore[arg-type]
            concurrency=setting.concurrency,
            in_flight=setting.max_in_flight,
            drain=DRAIN,
            poison="skip",
            retry=RetryPolicy(
                attempts=setting.attempts,
                unlisted_attempts=setting.attempts,
                backoff=Backoff(base=0.5, longest=2.0, jitter="none"),
            ),
        )
        self.first = self._scheduler("first", setting.first)
        self.second = self._scheduler("second", setting.second)
        self.stranger = self._scheduler("stranger", setting.first)
        size, most, times = setting.batch
        tries = setting.batch_tries
        again = RetryPolicy(
            attempts=tries, unlisted_attempts=tries, backoff=Backoff(base=0.4, jitter="none")
        )
        self.batcher = ItemBatcher(
            self.execute,
            max_batch_size=size,
            max_concurrent_batches=most,
            delay=setting.delay,
            max_items=size * times,
            retry=again if tries > 1 else None,
        )
        self.raws: list[EventContext] = []
        self.completed: set[EventContext] = set()
        """Raw events whose completion was accepted."""
        self.begun: set[Message] = set()
        """The events whose finaliser has begun."""
        self.failures = self.acked = self.given_up = self.ticks = 0
        self.has_crashed = self.is_draining = self.has_ended = False
        self.task: asyncio.Task[DrainReport] | None = None
        self._turns: dict[Hashable, str] = {}
        self._processing: set[tuple[str, object]] = set()
        self._batches: list[set[object]] = []
        self._tries: defaultdict[Hashable, int] = defaultdict(int)

    def _scheduler(self, name: str, bounds: tuple[int, int, int]) -> JobScheduler[Any, Any]:
        concurrency, max_keys, max_per_key = bounds

        async def process(key: object, work: Work) -> None:
            await self.process(name, key, work)

        async def finalise(context: EventContext, key: object, work: Work, error: Any) -> object:
            return await self.finalise(name, context, work, error)

        return JobScheduler(
            process,
            finalise,
            concurrency=concurrency,
            max_keys=max_keys,
            max_per_key=max_per_key,
            name=name,
        )

    def start(self) -> None:
        """Open the consumer and run it."""
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> DrainReport:
        every = self.setting.every if self.setting.ordering == "partition" else None
        interjectors = (
            [] if every is None else [Interjector(self.tick, every=every, jitter=0.1, seed=1)]
        )
        async with self.consumer as consumer:
            try:
                return await consumer.run_events(
                    self.handle,
                    jobs=[self.first, self.second, self.batcher],
                    interjections=interjectors,
                )
            finally:
                self.has_ended = True

    # -- turns -------------------------------------------------------------------------------------

    @contextmanager
    def turn(self, context: EventContext, what: str) -> Iterator[Message]:
        """One turn of a partition, or of a key."""
        message, by_key = context.message, self.setting.ordering == "key"
        lane = (message.claim.partition, message.key if by_key else None)
        other = self._turns.get(lane)
        self.truth.claim(other is None, f"side by side: {what} of {message}, and {other}")
        self.truth.claim(not self.has_ended, f"after the end: {what} of {message}")
        self.truth.claim(not message.claim.is_closed, f"after its claim: {what} of {message}")
        self._turns[lane] = f"{what} of {message}"
        self.truth.happened[what] += 1
        try:
            yield message
        finally:
            self._turns.pop(lane, None)

    async def handle(self, context: EventContext) -> object:
        """Begin an event."""
        with self.turn(context, "handler") as message:
            script = self.truth.scripts[place_of(message)]
            self._check_room(message)
            told = f"after its claim: handler of {message}"
            self.truth.claim(not message.claim.is_closing, told)
            await self.clock.sleep(script.takes)
            if self._fails(message, "handler", script.fails):
                return self._failure(message, script.mood)
            return self._begin(context, script)

    def _begin(self, context: EventContext, script: Script) -> object:
        message = context.message
        match script.kind:
            case "plain":
                self._complete(message)
                return None
            case "raw":
                self.raws.append(context)
                if script.is_early:
                    taken = context.job_complete(self.raw_final)
                    is_told = taken != message.claim.is_closed
                    self.truth.claim(is_told, f"early, and told {taken}")
                    self.truth.claim(not context.job_complete(self.raw_final), "complete twice")
                    self.completed.add(context)
                return Incomplete()
            case "items":
                return self._items(context, script)
            case "stranger":
                return self._stranger(context, script)
            case _:
                return self.first.schedule(context, message.key, Work(message, script))

    def _stranger(self, context: EventContext, script: Script) -> object:
        """Schedule with a scheduler outside the run, which must refuse the job."""
        try:
            work = Work(context.message, script)
            result = cast("object", self.stranger.schedule(context, "key", work))
        except ClosedError:
            result = None
        else:
            self.truth.claim(isinstance(result, Incomplete), "complete without its job")
        self._complete(context.message)
        return result

    def _items(self, context: EventContext, script: Script) -> Incomplete:
        group = BatchItems(context, context.key, self.written)
        for place, key in enumerate(script.items):
            group.add_with_key(key, place)
        return self.batcher.add(group)

    async def raw_final(self, context: EventContext) -> object:
        """Complete a raw event."""
        return await self._finished(context, "raw")

    async def finalise(
        self, name: str, context: EventContext, work: Work, error: BaseException | None
    ) -> object:
        """Finalise a job."""
        told = f"finalised before its processor ended: {context.message}"
        self.truth.claim(error is not None or work.processed == 1, told)
        self.truth.claim(context.message is work.message, "another event's finaliser")
        return await self._finished(context, name)

    async def written(self, context: EventContext, group: BatchItems) -> object:
        """Finalise a group."""
        told = f"called before its items were executed: {context.message}"
        executed = [item.user_data is not None or item.error is not None for item in group.items]
        self.truth.claim(all(executed), told)
        return await self._finished(context, "written")

    async def _finished(self, context: EventContext, face: str) -> object:
        with self.turn(context, f"finaliser ({face})") as message:
            self.begun.add(message)
            if message.index < 0:
                return None
            script = self.truth.scripts[place_of(message)]
            await self.clock.sleep(script.final)
            if self._fails(message, face, script.final_fails):
                return self._failure(message, script.mood)
            self._once(message, face)
            if face in {"first", "second"}:
                partition, offset = place_of(message)
                at = ("final", face, message.claim.number, partition, message.key)
                self.truth.comes_after(at, offset, f"finaliser ({face})")
            if face == "first" and script.kind == "chain":
                return self.second.schedule(context, message.key, Work(message, script))
            if face == "first" and script.kind == "job then items":
                return self._items(context, script)
            self._complete(message)
            return None

    def _once(self, message: Message, face: str) -> None:
        """Check that a callback is called once, except after failed attempts."""
        if message.claim.is_closed:
            return
        done = ("done", message.claim.number, message.offset, face)
        self.truth.claim(not self._tries[done], f"called twice: {face} of {message}")
        self._tries[done] += 1

    async def tick(self, context: EventContext) -> object:
        """Run an interjection."""
        with self.turn(context, "interjection") as message:
            self.ticks += 1
            turn = self.ticks % 4
            await self.clock.sleep(0.05)
            if turn == 0:
                raise ValueError("a bad tick")
            script = Script("tick", 0, 0.1, 0, False, 0, 0, "raise", False, ())
            if turn == 1:
                return self.first.schedule(context, "tick", Work(message, script))
            return None

    # -- jobs --------------------------------------------------------------------------------------

    async def process(self, name: str, key: object, work: Work) -> None:
        """Process a job."""
        truth, message = self.truth, work.message
        truth.claim((name, key) not in self._processing, f"a key in two processors: {message}")
        truth.claim(not work.begun, f"processed twice: {message}")
        truth.claim(not message.claim.is_closed, f"after its claim: processor of {message}")
        if message.index >= 0:
            at = ("process", name, message.claim.number, key)
            truth.comes_after(at, message.offset, f"processor ({name})")
        truth.happened["processor"] += 1
        work.begun += 1
        self._processing.add((name, key))
        try:
            await self.clock.sleep(work.script.job)
        finally:
            self._processing.discard((name, key))
        work.processed += 1
        if work.script.job_fails:
            raise ValueError("a bad job")

    async def execute(self, items: list[BatchItem]) -> None:
        """Execute a batch."""
        truth, (size, most, _) = self.truth, self.setting.batch
        keys = {item.key for item in items}
        truth.claim(0 < len(items) <= size, f"{len(items)} items in a batch")
        truth.claim(len(self._batches) < most, "too many batches at once")
        busy = {key for batch in self._batches for key in batch}
        truth.claim(not busy & keys, f"a key in two batches: {busy & keys}")
        again: dict[Hashable, Any] = {}
        for item in items:
            message = item.group.context.message
            truth.claim(not item.is_placeholder, "a placeholder is executed")
            tries = item.user_data or 0
            is_too_often = tries >= self.setting.batch_tries
            truth.claim(not is_too_often, f"executed twice: {message}")
            truth.claim(not message.claim.is_closed, f"after its claim: batch of {message}")
            kind = truth.scripts[place_of(message)].kind
            at = ("execute", kind, message.claim.number, message.key, item.key)
            if tries:
                again[at] = message.offset, item.value
            else:
                truth.comes_after(at, (message.offset, item.value), "batch")
            item.user_data = tries + 1
        for where, place in again.items():
            told = f"out of order: batch {truth.last[where]}, and {place} again"
            truth.claim(truth.last[where] == place, told)
        script = truth.scripts[place_of(items[0].group.context.message)]
        self._batches.append(keys)
        try:
            await self.clock.sleep(script.job)
        finally:
            self._batches.remove(keys)
        if script.job_fails:
            raise ValueError("a bad batch")

    # -- ends --------------------------------------------------------------------------------------

    def _fails(self, message: Message, face: str, fails: int) -> bool:
        at = message.claim.number, message.offset, face
        self._tries[at] += 1
        return self._tries[at] <= fails

    def _failure(self, message: Message, mood: str) -> object:
        self.failures += 1
        is_last = message.attempts.counted + 1 >= self.setting.attempts
        if not message.claim.is_closing and (is_last or mood in {"letter", "terminate"}):
            self.truth.settled.add(place_of(message))
            self.given_up += 1
        if mood == "raise":
            raise ValueError("a bad try")
        made = {"nak": Nak(), "later": Nak(0.7), "letter": ToDeadLetter(), "terminate": Terminate()}
        return made[mood]

    def _complete(self, message: Message) -> None:
        if not message.claim.is_closed:
            self.acked += 1
            self.truth.is_complete(message)

    # -- the inside --------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return not (self.has_crashed or self.task is None or self.task.done())

    def _without_room(self) -> list[Message]:
        events = self.consumer._events
        assert events is not None
        jobs = [
            each for run in (self.first._run, self.second._run) if run for each in run.queue._crowd
        ]
        groups = [] if self.batcher._run is None else self.batcher._run._crowd
        return [job.context.message for job in jobs] + [group.context.message for group in groups]

    def _check_room(self, message: Message) -> None:
        """Check that no event begins behind an event without capacity."""
        for other in self._without_room():
            is_same = (other.claim, other.lane_key) == (message.claim, message.lane_key)
            self.truth.claim(not is_same, f"no room for {other}, and {message} begins")

    def check_inside(self) -> None:
        """Check that the places add up and that `explain` covers everything."""
        if not self.is_alive or self.consumer._engine is None:
            return
        str(self.consumer.explain())
        inside = self.consumer.stats().in_flight
        places = (
            inside.ready
            + inside.running
            + inside.writing
            + inside.manual
            + inside.backing_off
            + inside.blocked
            + inside.waiting
            + inside.batched
        )
        assert places == inside.messages, f"places do not add up: {inside}"

    def to_be_finalised(self, partition: TopicPartition) -> set[Message]:
        """The events of a partition that await their finaliser; none if a finaliser has failed."""
        assert self.consumer._engine is not None
        schedule = self.consumer._engine.schedule
        if any(entry.message.finalise is not None for _, entry in schedule.retries):
            return set()
        return {each for each in schedule.completed.waiting if each.claim.partition == partition}

    def left_inside(self, *, has_ended: bool = False) -> dict[str, object]:
        """Everything inside; after the end, cut jobs do not count."""
        engine, run = self.consumer._engine, self.consumer._events
        assert engine is not None
        assert run is not None
        events, completed = run._events, engine.schedule.completed
        found = {
            "window": engine.schedule.window.messages,
            "keys": engine.schedule.active,
            "out": len(completed.out),
            "waiting": len(completed.waiting),
            "contexts": len(events._contexts),
            "early": len(events._early),
            "holds": len(events._without_room),
            "manual": len(engine.settler.manual),
            "turns": len(self._turns),
        }
        if not has_ended:
            found["first"] = sum(levels_of(self.first))
            found["second"] = sum(levels_of(self.second))
            found["items"] = self.batcher.inside
        return {name: count for name, count in found.items() if count}


def levels_of(scheduler: JobScheduler[Any, Any]) -> tuple[int, ...]:
    """The levels of a scheduler."""
    stats = scheduler.stats()
    return stats.running, stats.waiting, stats.key_count, stats.without_room
