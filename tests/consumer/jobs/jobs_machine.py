"""Random tests of events that are completed later, on virtual time, in any order of actions.

White box: the error of a crashed source in memory.

One process at a time reads two partitions. Each record has a script: its jobs, its items, their
durations, and which of them fail. Rules assign and revoke partitions, end the process in any way,
and complete raw events at any time. The functions of the process check each call (`jobs_member`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from jobs.jobs_member import JobsMember
from jobs.jobs_script import DRAIN, JobsTruth, Setting, scripts, settings_of_members

from sluicegate import ClosedError, ConfigError, SluicegateError
from sluicegate.consumer import MemoryLog, Record, TopicPartition
from sluicegate.consumer.memory.source import Crashed
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from jobs.jobs_script import Script

PARTITIONS = [TopicPartition("t", number) for number in range(2)]
KEYS = ["a", "b", "c"]
MOST_RECORDS = 40
LONGEST = 300.0
"""Virtual seconds until everything is complete once the actions have ended."""


class JobsMachine(RuleBasedStateMachine):
    """The rules are actions of producers, brokers, callers and operators, and crashes."""

    failed = False
    where: ClassVar[dict[str, Any]] = {}
    """The fixed settings."""

    @initialize(setting=settings_of_members)
    def begin(self, setting: Setting) -> None:
        self.clock = FakeClock(max_rounds=50_000)
        self.setting = replace(setting, **self.where)
        self.log = MemoryLog(partitions=PARTITIONS)
        self.truth = JobsTruth(self.log)
        self.count = 0
        self.calls: list[asyncio.Task[Any]] = []
        self.old: list[JobsMember] = []
        self._join()
        self.act(lambda: self.member.source.assign(PARTITIONS))

    def _join(self) -> None:
        self.member = JobsMember(self.truth, self.setting, self.clock)
        self.act(self.member.start)

    def act(self, act: Any, seconds: float = 0.0) -> None:
        """Act inside the loop, then run it until nothing is ready."""

        async def run() -> None:
            result = act()
            if asyncio.iscoroutine(result):
                self.calls.append(asyncio.get_running_loop().create_task(result))
            await self.clock.advance(seconds)

        self.clock.run(run())

    # -- producers and callers ---------------------------------------------------------------------

    @precondition(lambda self: self.count < MOST_RECORDS)
    @rule(
        partition=st.sampled_from(PARTITIONS),
        drawn=st.lists(st.tuples(st.sampled_from(KEYS), scripts), min_size=1, max_size=5),
    )
    def produce(self, partition: TopicPartition, drawn: list[tuple[str, Script]]) -> None:
        for key, script in drawn:
            offset = self.log.end(partition)
            self.truth.scripts[partition, offset] = script
            self.log.append(Record(*partition, offset, key, b"x"))
        self.count += len(drawn)
        self.act(lambda: None)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1, 0.5, 2.0]))
    def wait(self, seconds: float) -> None:
        self.act(lambda: None, seconds)

    @precondition(lambda self: self.member.raws)
    @rule(data=st.data(), again=st.booleans())
    def complete(self, data: st.DataObject, again: bool) -> None:
        context = data.draw(st.sampled_from(self.member.raws))
        self.act(lambda: self._complete(self.member, context, again=again))

    def _complete(self, member: JobsMember, context: Any, *, again: bool) -> None:
        taken = context.job_complete(member.raw_final)
        if taken:
            member.completed.add(context)
            self.truth.claim(not context.message.claim.is_closed, "completed after its claim")
            self.truth.claim(not member.has_ended, "completed after the end")
        if taken and again:
            is_again = context.job_complete(member.raw_final)
            self.truth.claim(not is_again, "completed twice")

    @precondition(lambda self: self.setting.ordering == "partition")
    @rule(partition=st.sampled_from([None, *PARTITIONS]))
    def interject(self, partition: TopicPartition | None) -> None:
        member = self.member
        self.act(lambda: self._interject(member, partition))

    async def _interject(self, member: JobsMember, partition: TopicPartition | None) -> None:
        try:
            await member.consumer.interject(member.tick, partition)
        except (SluicegateError, ValueError) as error:
            self.truth.claim(not isinstance(error, ConfigError), repr(error))

    @rule(concurrency=st.integers(1, 3), room=st.integers(0, 2), per_key=st.integers(1, 3))
    def set_bounds(self, concurrency: int, room: int, per_key: int) -> None:
        first = self.member.first
        self.act(
            lambda: first.set_bounds(
                concurrency=concurrency, max_keys=concurrency + room, max_per_key=per_key
            )
        )

    # -- brokers -----------------------------------------------------------------------------------

    def _free(self) -> list[TopicPartition]:
        return self.log.group.free(PARTITIONS)

    @precondition(lambda self: self._free())
    @rule()
    def assign(self) -> None:
        self.act(lambda: self.member.source.assign(self._free()))

    @precondition(lambda self: self.member.source.claimed)
    @rule(data=st.data(), within=st.sampled_from([0.0, 0.3, 5.0]))
    def revoke(self, data: st.DataObject, within: float) -> None:
        member = self.member
        partition = data.draw(st.sampled_from(member.source.claimed))
        waiting, failures = member.to_be_finalised(partition), member.failures
        member.begun.clear()
        self.act(lambda: self._revoke(member, partition, within))
        if within and waiting and failures == member.failures:
            kept = member.begun | member.to_be_finalised(partition)
            assert waiting & kept, "what waits to be finalised has left before the deadline"

    async def _revoke(self, member: JobsMember, partition: TopicPartition, within: float) -> None:
        if partition in member.source.claimed:
            with suppress(Crashed):
                await member.source.revoke([partition], within)

    @precondition(lambda self: self.member.source.claimed)
    @rule(data=st.data(), returns=st.booleans())
    def lose(self, data: st.DataObject, returns: bool) -> None:
        source = self.member.source
        partition = data.draw(st.sampled_from(source.claimed))
        self.act(lambda: source.lose([partition]))
        if returns:
            self.act(lambda: source.assign(self._free()))

    # -- operators and crashes ---------------------------------------------------------------------

    @rule()
    def commit(self) -> None:
        member = self.member
        self.act(lambda: self._commit(member))

    async def _commit(self, member: JobsMember) -> None:
        with suppress(Crashed, ClosedError):
            await member.consumer.commit()

    @rule()
    def crash(self) -> None:
        member = self.member
        member.has_crashed = True
        self.act(lambda: self._crash(member))
        self._join()

    async def _crash(self, member: JobsMember) -> None:
        member.source.crash()
        assert member.task is not None
        for _ in range(2):
            member.task.cancel()
            await self.clock.sleep(0)
        await asyncio.wait([member.task])

    @rule()
    def drain(self) -> None:
        member = self.member
        self.old.append(member)
        self.act(lambda: self._drain(member))
        self._join()

    async def _drain(self, member: JobsMember) -> None:
        assert member.task is not None
        member.is_draining = True
        began = self.clock.now()
        member.consumer.stop()
        report = await member.task
        assert self.clock.now() - began <= DRAIN + 0.001, "the drain took longer than its deadline"
        counts = report.counts
        told = (counts.acked, counts.terminated)
        assert told == (member.acked, member.given_up), f"counted {told}: {counts}"
        if left := member.left_inside(has_ended=True):
            raise AssertionError(f"left inside after a drain: {left}")

    # -- laws --------------------------------------------------------------------------------------

    @invariant()
    def the_laws_hold(self) -> None:
        if hasattr(self, "member"):
            self.failed = True
            self._check()
            self.failed = False

    def _check(self) -> None:
        if self.truth.complaints:
            raise AssertionError(self.truth.complaints[0])
        self.truth.check_commits()
        for member in (self.member, *self.old):
            member.check_inside()
            task = member.task
            if task is not None and task.done() and not task.cancelled() and task.exception():
                raise AssertionError(f"a consumer failed: {task.exception()!r}")
        for call in self.calls:
            if call.done() and not call.cancelled() and (error := call.exception()) is not None:
                raise error

    def teardown(self) -> None:
        if not hasattr(self, "member"):
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
        """Assign everything to the last process; check that all events complete and the consumer is
        empty.
        """
        self.act(lambda: None, 10 * DRAIN)
        self.act(lambda: self.member.source.assign(self._free()))
        until = self.clock.now() + LONGEST
        while not self._is_over() and self.clock.now() < until:
            self.act(self._complete_all, 0.7)
            self._check()
        lost = set(self.truth.scripts) - self.truth.settled
        assert not lost, f"the end was not reached: {sorted(lost)[:3]}"
        left = self.member.left_inside()
        assert not left, f"left inside: {left}"
        self.act(lambda: self._drain(self.member), 2 * DRAIN)
        self._check()
        assert all(call.done() for call in self.calls), "the end was not reached: a call"
        for partition in PARTITIONS:
            stored = self.log.start(partition).offset
            assert stored == self.log.end(partition), f"not committed: {partition}@{stored}"

    def _complete_all(self) -> None:
        for context in self.member.raws:
            if context not in self.member.completed:
                context.job_complete(self.member.raw_final)

    def _is_over(self) -> bool:
        is_settled = set(self.truth.scripts) <= self.truth.settled
        return is_settled and not self.member.left_inside()


def narrowed(**where: Any) -> type[JobsMachine]:
    """The machine with some fixed settings."""
    return type("JobsMachine", (JobsMachine,), {"where": where})
