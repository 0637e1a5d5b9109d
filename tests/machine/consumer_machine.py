"""Random tests of consumers of one log, one rule at a time, on virtual time.

White box: the inside of each consumer.

Two members read three partitions. A handler waits until a rule ends it, with any result. After
every rule the log's stored positions, the order of starts and settlements, and the inside of each
consumer are compared with the calls that the handlers have recorded.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluicegate import Ack, Backoff, Consumer, Nak, RetryPolicy, Terminate, ToDeadLetter
from sluicegate._core.clock import wait_until
from sluicegate.consumer import (
    InFlight,
    MemoryLog,
    MemorySource,
    Poison,
    Position,
    Record,
    TopicPartition,
)
from sluicegate.consumer.progress import offset_map
from sluicegate.sinks import MemorySink
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate import Message
    from sluicegate.consumer import DrainReport

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
KEYS = [b"a", b"b", b"c", None]
MOST_RECORDS = 60
DRAIN = 2.0

Place = tuple[TopicPartition, int]
Lane = tuple[TopicPartition, object]


@dataclass(frozen=True)
class Setting:
    """The arguments of the members."""

    concurrency: int
    max_in_flight: int
    chunk: int
    batch: int | None
    attempts: int


settings_of_members = st.builds(
    Setting,
    concurrency=st.sampled_from([1, 2, 8]),
    max_in_flight=st.sampled_from([2, 5, 40]),
    chunk=st.sampled_from([1, 3, 50]),
    batch=st.sampled_from([None, None, 1, 3]),
    attempts=st.sampled_from([2, 50]),
)


@dataclass(eq=False)
class Run:
    """A call of a handler: its messages, and the future that ends it."""

    member: Member
    messages: list[Message]
    end: asyncio.Future[Any]
    results: list[Any] = field(default_factory=list)

    @property
    def lanes(self) -> set[Lane]:
        """The keys of its messages."""
        return {lane_of(message) for message in self.messages}


def place_of(message: Message) -> Place:
    """Partition and offset."""
    return message.claim.partition, message.offset


def lane_of(message: Message) -> Lane:
    """The unit of ordering: partition and key."""
    return message.claim.partition, message.key


class Truth:
    """The calls of the handlers, compared with the log."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.settled: set[Place] = set()
        """Acknowledged in an open claim, or given up."""
        self.buried: set[Place] = set()
        self.complaints: list[str] = []
        """Complaints of handlers: an exception there would only be a failed attempt."""
        self.commits_seen = 0
        self.last: dict[TopicPartition, int] = {}

    def is_covered(self, place: Place, position: Position) -> bool:
        """Whether a stored position or its map passes a record."""
        offset = place[1]
        done = offset_map.decode(position.offset, position.metadata)
        return offset < position.offset or any(a <= offset < b for a, b in done)

    def earlier(self, message: Message) -> list[Place]:
        """The records of the same key before a message."""
        partition, offset = place_of(message)
        return [
            (partition, record.offset)
            for record in self.log.records[partition]
            if record.offset < offset and record.key == message.key
        ]

    def check_commits(self) -> None:
        """Laws 3 and 4: a stored position passes only settled records, and never moves back."""
        for partition, position in self.log.commits[self.commits_seen :]:
            passed = [
                record.offset
                for record in self.log.records[partition]
                if self.is_covered((partition, record.offset), position)
            ]
            lost = [offset for offset in passed if (partition, offset) not in self.settled]
            assert not lost, f"committed past unsettled records: {partition} {lost} {position}"
            before = self.last.get(partition, 0)
            assert position.offset >= before, f"a position went back: {partition} {position}"
            self.last[partition] = position.offset
        self.commits_seen = len(self.log.commits)


class Member:
    """One process: a consumer, its source and its running handlers."""

    def __init__(self, truth: Truth, setting: Setting, clock: FakeClock) -> None:
        self.truth = truth
        self.setting = setting
        self.clock = clock
        self.source = MemorySource(truth.log, partitions=[], chunk=setting.chunk, clock=clock)
        self.letters = MemorySink[Any]()
        self.consumer = Consumer(
            self.source,
            clock=clock,
            concurrency=setting.concurrency,
            in_flight=InFlight(setting.max_in_flight, fetch_max=setting.chunk),
            drain=DRAIN,
            poison=Poison("skip", dead_letters=self.letters),
            retry=RetryPolicy(
                attempts=setting.attempts,
                unlisted_attempts=setting.attempts,
                backoff=Backoff(base=0.5, longest=2.0, jitter="none"),
            ),
        )
        self.running: list[Run] = []
        self.starts: dict[int, Position] = {}
        self.is_draining = False
        self.drained: set[Place] = set()
        """The messages that ran during the drain."""
        self.has_crashed = False
        self.task: asyncio.Task[DrainReport] | None = None

    def start(self) -> None:
        """Open the consumer and run it."""
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> DrainReport:
        async with self.consumer as consumer:
            if self.setting.batch is None:
                return await consumer.run(self.handle)
            return await consumer.run_batch(self.handle_many, size=self.setting.batch, max_wait=0.1)

    async def handle(self, message: Message) -> Any:
        """Wait for the rule that ends this call."""
        return (await self._handle([message]))[0]

    async def handle_many(self, messages: Sequence[Message]) -> Any:
        """Like `handle`, for a batch."""
        return await self._handle(list(messages))

    async def _handle(self, messages: list[Message]) -> list[Any]:
        run = Run(self, messages, asyncio.get_running_loop().create_future())
        try:
            self._check_start(run)
        except AssertionError as complaint:
            self.truth.complaints.append(str(complaint))
        self.running.append(run)
        if self.is_draining:
            self.drained.update(map(place_of, messages))
        try:
            results: list[Any] = await run.end
        finally:
            self.running.remove(run)
        return results

    def _check_start(self, run: Run) -> None:
        truth = self.truth
        assert 0 < len(run.messages) <= (self.setting.batch or 1), "a batch is too large"
        busy = {lane for other in self.running for lane in other.lanes}
        assert not busy & run.lanes, f"a key runs twice: {busy & run.lanes}"
        is_ending = self.is_draining or self.has_crashed
        is_flush = is_ending and self.setting.batch is not None
        assert is_flush or not is_ending, "started after the drain began"
        seen: set[Place] = set()
        for message in run.messages:
            claim = message.claim
            assert is_flush or not claim.is_closing, f"started for a claim that ends: {message}"
            place = place_of(message)
            behind = [
                each
                for each in truth.earlier(message)
                if each not in truth.settled and each not in seen
            ]
            assert not behind, f"{message} overtook {behind}"
            covered = truth.is_covered(place, claim.start)
            assert not covered, f"{message} was committed when its claim began"
            seen.add(place)

    # -- the effect of an ended handler ------------------------------------------------------------

    def end(self, run: Run, results: list[Any]) -> None:
        """End a handler, and record what it settles."""
        stopped: set[Lane] = set()
        for message, result in zip(run.messages, results, strict=True):
            lane = lane_of(message)
            if lane in stopped or message.claim.is_closed:
                continue
            place = place_of(message)
            if result is None or isinstance(result, Ack):
                self.truth.settled.add(place)
            elif message.claim.is_closing:
                stopped.add(lane)
            elif isinstance(result, (ToDeadLetter, Terminate)) or self._is_last(message):
                self.truth.settled.add(place)
                self.truth.buried.add(place)
            else:
                stopped.add(lane)
        run.end.set_result(results)

    def _is_last(self, message: Message) -> bool:
        return message.attempts.counted + 1 >= self.setting.attempts

    # -- the inside --------------------------------------------------------------------------------

    def check_inside(self) -> None:
        """Laws 7, 8 and 9."""
        engine = self.consumer._engine
        if engine is None or self.has_crashed or (self.task is not None and self.task.done()):
            return
        schedule, window = engine.schedule, engine.schedule.window
        assert window.messages <= self.setting.max_in_flight, "the window is exceeded"
        ready = list(schedule.ready)
        assert len(set(map(id, ready))) == len(ready), "a message is ready twice"
        lanes = [(id(message.claim.lanes), message.lane_key) for message in ready]
        assert len(set(lanes)) == len(lanes), "a key is ready twice"
        running = {lane for run in self.running for lane in run.lanes}
        assert not running & {lane_of(message) for message in ready}, "a running key is ready"

    def check_no_stall(self) -> None:
        """Law 8: no startable message waits while a worker is idle."""
        engine = self.consumer._engine
        if engine is None or self.has_crashed or self.task is None or self.task.done():
            return
        if self.is_draining or self.setting.batch is not None:
            return
        is_busy = len(self.running) >= self.setting.concurrency
        assert is_busy or not engine.schedule.ready, "a wake-up was lost: ready, and workers idle"
        unfinished = engine.schedule.window.messages
        going = engine.schedule.active
        assert bool(unfinished) == bool(going), f"{unfinished} inside, {going} keys active"


class ConsumerMachine(RuleBasedStateMachine):
    """The rules are actions of producers, handlers, brokers and operators, and crashes."""

    failed = False

    where: ClassVar[dict[str, Any]] = {}
    """The fixed settings."""

    @initialize(setting=settings_of_members)
    def begin(self, setting: Setting) -> None:
        self.clock = FakeClock(max_rounds=20_000)
        self.setting = setting = replace(setting, **self.where)
        self.log = MemoryLog(partitions=PARTITIONS)
        self.truth = Truth(self.log)
        self.members: list[Member] = []
        self.old: list[Member] = []
        self.count = 0
        self.jobs: list[asyncio.Task[Any]] = []
        for _ in range(2):
            self._join()
        self.act(lambda: self.members[0].source.assign(PARTITIONS[:2]))

    def _join(self) -> None:
        member = Member(self.truth, self.setting, self.clock)
        self.members.append(member)
        self.act(member.start)

    def act(self, act: Any, seconds: float = 0.0) -> None:
        """Act inside the loop, then run it until nothing is ready."""

        async def run() -> None:
            result = act()
            if asyncio.iscoroutine(result):
                self.jobs.append(asyncio.get_running_loop().create_task(result))
            await self.clock.advance(seconds)

        self.clock.run(run())

    # -- producers and handlers --------------------------------------------------------------------

    @precondition(lambda self: self.count < MOST_RECORDS)
    @rule(
        partition=st.sampled_from(PARTITIONS),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6),
        hole=st.sampled_from([0, 0, 0, 1, 3]),
    )
    def produce(self, partition: TopicPartition, keys: list[Any], hole: int) -> None:
        if hole:
            self.log.skip(partition, hole)
        first = self.log.end(partition)
        for place, key in enumerate(keys):
            self.log.append(Record(*partition, first + place, key, b"x"))
        self.count += len(keys)
        self.act(lambda: None)

    @property
    def runs(self) -> list[Run]:
        return [run for member in [*self.members, *self.old] for run in member.running]

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), all_of_them=st.booleans())
    def finish(self, data: st.DataObject, all_of_them: bool) -> None:
        runs = self.runs if all_of_them else [data.draw(st.sampled_from(self.runs))]
        answers = st.sampled_from(["ack"] * 6 + ["nak", "later", "letter", "terminate", "raise"])
        chosen = [(run, [data.draw(answers) for _ in run.messages]) for run in runs]
        self.act(lambda: self._end_all(chosen))

    def _end_all(self, chosen: list[tuple[Run, list[str]]]) -> None:
        for run, answers in chosen:
            self._end(run, answers)

    def _end(self, run: Run, answers: list[str]) -> None:
        if run.end.done():
            return
        made = {"ack": None, "nak": Nak(), "later": Nak(1.5), "raise": Nak(error=ValueError())}
        results = [
            made.get(answer, ToDeadLetter() if answer == "letter" else Terminate())
            for answer in answers
        ]
        run.member.end(run, results)

    @rule(seconds=st.sampled_from([0.01, 0.2, 0.5, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        self.act(lambda: None, seconds)

    # -- brokers -----------------------------------------------------------------------------------

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.members if not member.is_draining]

    def _free(self) -> list[TopicPartition]:
        return self.log.group.free(PARTITIONS)

    @precondition(lambda self: self.alive and self._free())
    @rule(data=st.data())
    def assign(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.alive))
        partition = data.draw(st.sampled_from(self._free()))
        self.act(lambda: member.source.assign([partition]))

    @property
    def holders(self) -> list[Member]:
        return [member for member in self.alive if member.source.claimed]

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), within=st.sampled_from([0.0, 0.3, 5.0]))
    def revoke(self, data: st.DataObject, within: float) -> None:
        member = data.draw(st.sampled_from(self.holders))
        partition = data.draw(st.sampled_from(member.source.claimed))
        self.act(lambda: self._revoke(member, partition, within))

    async def _revoke(self, member: Member, partition: TopicPartition, within: float) -> None:
        if partition in member.source.claimed:
            await member.source.revoke([partition], within)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.holders))
        partition = data.draw(st.sampled_from(member.source.claimed))
        self.act(lambda: member.source.lose([partition]))

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), stored=st.booleans(), seconds=st.sampled_from([0.0, 0.4]))
    def fail_a_commit(self, data: st.DataObject, stored: bool, seconds: float) -> None:
        member = data.draw(st.sampled_from(self.holders))
        error = ConnectionError("lost")
        self.act(lambda: member.source.script_commit(error, stored=stored, seconds=seconds))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def redeliver(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.holders))
        partition = data.draw(st.sampled_from(member.source.claimed))
        self.act(lambda: member.source.redeliver(partition))

    # -- operators and crashes ---------------------------------------------------------------------

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS), resume=st.booleans())
    def pause(self, data: st.DataObject, partition: TopicPartition, resume: bool) -> None:
        consumer = data.draw(st.sampled_from(self.holders)).consumer
        self.act(lambda: consumer.resume(partition) if resume else consumer.pause(partition))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.alive))
        self.members.remove(member)
        member.has_crashed = True
        self.act(lambda: self._crash(member))
        self._join()

    async def _crash(self, member: Member) -> None:
        member.source.crash()
        assert member.task is not None
        for _ in range(2):
            member.task.cancel()
            await self.clock.sleep(0)
        await asyncio.wait([member.task])

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.alive))
        self.members.remove(member)
        self.old.append(member)
        self.act(lambda: self._drain(member))
        self._join()

    async def _drain(self, member: Member) -> None:
        assert member.task is not None
        member.is_draining = True
        began = self.clock.now()
        for run in member.running:
            member.drained.update(map(place_of, run.messages))
        member.consumer.stop()
        report = await member.task
        assert self.clock.now() - began <= DRAIN + 0.001, "the drain took longer than its deadline"
        unfinished = {(each.partition, each.offset) for each in report.unfinished}
        assert unfinished <= member.drained, "the report names messages that did not run"

    # -- laws --------------------------------------------------------------------------------------

    @invariant()
    def the_laws_hold(self) -> None:
        if hasattr(self, "members"):
            self.failed = True
            self._check()
            self.failed = False

    def _check(self) -> None:
        if self.truth.complaints:
            raise AssertionError(self.truth.complaints[0])
        self.truth.check_commits()
        for member in self.members:
            member.check_inside()
            member.check_no_stall()
        for job in self.jobs:
            error = job.exception() if job.done() and not job.cancelled() else None
            if error is not None and not isinstance(error, ConnectionError):
                raise error
        for member in self.members:
            task = member.task
            if task is not None and task.done() and not task.cancelled() and task.exception():
                raise AssertionError(f"a consumer failed: {task.exception()!r}")

    def teardown(self) -> None:
        if not hasattr(self, "members"):
            return
        try:
            if not self.failed:
                self._settle_all()
        finally:
            self.clock.run(self._abandon())
            self.clock.close()

    async def _abandon(self) -> None:
        """Cancel all tasks, including those left by a planted bug."""
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for _ in range(3):
            for task in rest:
                task.cancel()
            await asyncio.sleep(0)

    def _settle_all(self) -> None:
        """Law 5: a single member with all partitions, whose handlers succeed, settles every
        record, and commits them unless its report says that the last commit failed.
        """
        last = self.members[0]
        self.act(self._finish)
        for _ in range(400):
            if all(job.done() for job in self.jobs):
                break
            self.act(lambda: None, 1.0)
        self.the_laws_hold()
        for job in self.jobs:
            assert job.done(), "the end was not reached"
        assert last.task is not None
        has_failed = last.task.result().commit_error is not None
        for partition in PARTITIONS:
            places = {(partition, record.offset) for record in self.log.records[partition]}
            assert places <= self.truth.settled, f"lost: {places - self.truth.settled}"
            stored = self.log.start(partition).offset
            is_committed = not places or stored >= self.log.records[partition][-1].offset + 1
            assert is_committed or has_failed, "not committed"
        letters = {
            (TopicPartition(item.item["topic"], item.item["partition"]), item.item["offset"])
            for member in [*self.members, *self.old]
            for item in member.letters.items
        }
        assert letters <= self.truth.buried, f"buried, but not given up: {letters}"

    async def _finish(self) -> None:
        last = self.members[0]
        for member in self.members[1:]:
            await self._stop(member)
        await wait_until(self.clock, self.clock.now() + 10 * DRAIN)
        last.consumer.resume()
        last.source.assign(self._free())
        for _ in range(300):
            for run in list(last.running):
                if not run.end.done():
                    last.end(run, [None] * len(run.messages))
            await self.clock.sleep(0.5)
            if self._is_settled():
                break
        await self._stop(last)

    def _is_settled(self) -> bool:
        places = {
            (partition, record.offset)
            for partition in PARTITIONS
            for record in self.log.records[partition]
        }
        return places <= self.truth.settled and not self.members[0].running

    async def _stop(self, member: Member) -> None:
        if not member.is_draining:
            await self._drain(member)


def narrowed(**where: Any) -> type[ConsumerMachine]:
    """The machine with some fixed settings."""
    return type("ConsumerMachine", (ConsumerMachine,), {"where": where})
