"""Seeded runs of two pipes in a group under faults of brokers, networks, destinations and
operators, on virtual time; the destination's own record is the truth.

White box: the time that a cancelled write has to end.
"""

from __future__ import annotations

import asyncio
import math
import random
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipe_members import Member, TruthfulLog, TruthfulStore
from pipe_rows import Row, Told
from pipe_settings import BROKEN, drawn
from pipe_troubles import Weather
from pipe_truth import BROKEN_LAW, Truth

from sluicegate import ClosedError, ConfigError, TransientError
from sluicegate._core.delivery.delivery import GRACE
from sluicegate.consumer import MemoryLog, TopicPartition
from sluicegate.errors import NoSuchKey
from sluicegate.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from sluicegate import Message

NAMES = ("m0", "m1")
DEAF = 30.0
"""Seconds after which the deaf writes of crashed members end."""
LONGEST = 200
"""Virtual seconds until everything is settled once there are no more faults."""

EVENTS = {
    "produce": 6, "assign": 4, "revoke": 6, "lose": 3, "outage": 2, "refusal": 2, "commit fails": 3,
    "crash": 1, "stop": 1, "unblock": 3, "look": 2, "redeliver": 1,
}  # fmt: skip
"""The events and their weights."""


class LawBroken(AssertionError):
    """A law of the pipe is broken; the message begins with its name."""


class PipeSchedule:
    """One run. `fixed` contains the settings that are not drawn."""

    def __init__(self, seed: int, **fixed: Any) -> None:
        self._rng = random.Random(seed)
        self.setting = replace(drawn(self._rng), **fixed)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unparking: set[tuple[str, object]] = set()
        self._runs = 0
        self._contents: dict[tuple[int, int], list[Row] | None] = {}

    def run(self) -> Truth:
        """Run the schedule with every check. Raises `LawBroken`."""
        self._clock = clock = FakeClock(max_rounds=500_000)
        with clock:
            clock.run(self._run())
            if left := clock.leftovers():
                raise LawBroken(f"left inside: {left}")
        return self._truth

    @property
    def history(self) -> list[tuple[object, ...]]:
        """The events up to the first broken law."""
        history = self._truth.history
        broken = [at for at, event in enumerate(history) if event[1] == BROKEN_LAW]
        return history[: broken[0] + 1] if broken else history

    async def _run(self) -> None:
        setting, clock = self.setting, self._clock
        partitions = [TopicPartition("t", number) for number in range(setting.partitions)]
        self._log = TruthfulLog(partitions)
        self._truth = self._log.truth = Truth(
            clock.now,
            is_keyed=setting.is_keyed,
            prefix_safe=setting.prefix_safe,
            grace=GRACE if setting.timeout is None else math.inf,
        )
        asyncio.get_running_loop().set_exception_handler(self._unheard)
        self._store = TruthfulStore(self._truth)
        self._weather = Weather(self._rng, clock, setting.trouble)
        self._produce(40)
        self._members = {name: self._begin(name) for name in NAMES}
        try:
            await clock.sleep(0.01)
            self._share()
            for _ in range(setting.events):
                await clock.sleep(self._rng.expovariate(2.0))
                await self._happen()
                self._check()
            await self._settle_down()
            await clock.sleep(DEAF)
            self._truth.check_end()
            self._check()
        except BaseException:
            await self._tear_down()
            raise

    def _check(self) -> None:
        for member in self._members.values():
            if member.task.done() and not (member.is_stopping or member.is_dead):
                self._truth.complain("failed", f"{member.name} ended: {member.task!r}")
        if self._truth.broken:
            raise LawBroken(self._truth.broken[0])

    def _unheard(self, loop: object, context: dict[str, Any]) -> None:
        """Record an unhandled exception: it breaks the first law."""
        self._truth.complain("failed", f"{context['message']}: {context.get('exception')!r}")

    # -- records -----------------------------------------------------------------------------------

    def _produce(self, count: int) -> None:
        for _ in range(count):
            partition = self._rng.randrange(self.setting.partitions)
            offset = self._log.end(TopicPartition("t", partition))
            key = self._rng.choice(self.setting.keys)
            rows = self._rows(partition, offset, key)
            self._contents[partition, offset] = rows
            good = [row for row in rows or () if row.key != BROKEN]
            self._poison(good)
            is_whole = rows is not None and len(good) == len(rows)
            told = Told(tuple(good), is_whole)
            self._log.produce("t", b"", key=key, partition=partition)
            self._truth.produced(self._log.records[TopicPartition("t", partition)][-1], told)

    def _rows(self, partition: int, offset: int, key: Any) -> list[Row] | None:
        """The rows of a record; `None` if they cannot be made."""
        rng, setting = self._rng, self.setting
        if setting.rows == "the record":
            return [Row(partition, offset, 0, key)]
        if rng.random() < setting.poison and setting.strategy != "park_key":
            return None
        if setting.rows == "one":
            return [Row(partition, offset, 0, key)]
        keys = [rng.choice(setting.keys) for _ in range(rng.choice((0, 1, 1, 3)))]
        if keys and setting.is_keyed and rng.random() < setting.poison:
            keys[-1] = BROKEN
        return [Row(partition, offset, part, key) for part, key in enumerate(keys)]

    def _poison(self, rows: list[Row]) -> None:
        for row in rows:
            if self._rng.random() < self.setting.poison:
                self._weather.poison.add(row[:3])

    def _transform(self) -> Any:
        if self.setting.rows == "the record":
            return None
        rng, clock = self._rng, self._clock

        def rows_of(message: Message) -> Any:
            rows = self._contents[message.partition, message.offset]
            if rows is None:
                raise ValueError("no JSON")
            if rng.random() < 0.02:
                raise TransientError("a lookup failed")
            rows = [row._replace(claim=message.claim.number) for row in rows]
            if len(rows) == 1:
                return rows[0]
            return [*rows] if rows else None

        async def rows_of_later(message: Message) -> Any:
            await clock.sleep(rng.choice((0.0, 0.01, 0.2)))
            return rows_of(message)

        return rows_of_later if self.setting.is_async else rows_of

    # -- members -----------------------------------------------------------------------------------

    def _begin(self, name: str) -> Member:
        self._runs += 1
        transform = self._transform()
        return Member(
            f"{name}.{self._runs}", self.setting, self._log, self._truth, self._weather,
            self._clock, random.Random(self._rng.random()), transform, self._store,
        )  # fmt: skip

    def _open(self) -> list[Member]:
        return [member for member in self._members.values() if member.is_open]

    def _share(self) -> None:
        """Assign each free partition to an open member."""
        if members := self._open():
            for partition in self._log.group.free(self._log.records):
                self._rng.choice(members).source.assign([partition])

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _again(self, name: str) -> None:
        """Begin a member's next run once its last one has ended."""
        old = self._members[name]
        await old.end()
        await self._clock.sleep(self._rng.choice((0.0, 1.0)))
        self._members[name] = self._begin(name)

    # -- events ------------------------------------------------------------------------------------

    async def _happen(self) -> None:
        """Run one random event."""
        rng, weather = self._rng, self._weather
        member = rng.choice(list(self._members.values()))
        event = rng.choices(list(EVENTS), list(EVENTS.values()))[0]
        self._truth.seen[event] += 1
        match event:
            case "produce":
                self._produce(rng.randint(1, 12))
            case "assign":
                self._share()
            case "outage":
                weather.strike("outage", rng.choice((0.1, 1.0, 4.0)))
            case "refusal":
                weather.strike("refusal", rng.choice((0.1, 1.0, 4.0)))
            case _ if member.is_open:
                await self._happen_to(member, event)
            case _:
                pass

    async def _happen_to(self, member: Member, event: str) -> None:
        rng, source = self._rng, member.source
        claimed = source.claimed
        some = rng.sample(claimed, rng.randint(1, len(claimed))) if claimed else []
        match event:
            case "revoke" if some:
                within = rng.choice((0.0, 0.05, 1.0, 30.0))
                self._start(self._revoke(member, some, within))
            case "lose":
                source.lose(some)
                if rng.random() < 0.7:
                    self._share()
            case "commit fails":
                error, stored = TransientError("the coordinator moves"), rng.random() < 0.3
                source.script_commit(error, stored=stored, seconds=rng.choice((0.0, 0.5)))
            case "redeliver" if some:
                source.redeliver(some[0])
            case "crash":
                await member.crash()
                self._start(self._again(member.name[:2]))
            case "stop":
                member.stop()
                self._start(self._again(member.name[:2]))
            case "unblock":
                self._unblock(member, skips=rng.random() < 0.3)
            case "look":
                str(member.pipe.explain())
            case _:
                pass

    async def _revoke(
        self, member: Member, partitions: list[TopicPartition], within: float
    ) -> None:
        """Move partitions to another member, or leave them unassigned."""
        others = [each for each in self._open() if each is not member or self._rng.random() < 0.3]
        with suppress(TransientError, ClosedError, ConfigError, ConnectionError):
            if others and self._rng.random() < 0.8:
                await member.source.give(partitions, self._rng.choice(others).source, within)
            else:
                await member.source.revoke(partitions, within)

    def _unblock(self, member: Member, *, skips: bool) -> None:
        """Unblock a blocked or parked key, as an operator does."""
        for key in member.pipe.parked:
            if (member.name, key) not in self._unparking:
                self._start(self._unpark(member, key))
        for each in {(each.partition, each.key): each for each in member.pipe.blocked}.values():
            same = [
                (other.partition.partition, other.offset)
                for other in member.pipe.blocked
                if (other.partition, other.key) == (each.partition, each.key)
            ]
            is_hopeless = any(not self._truth.records[place].is_whole for place in same)
            if skips or is_hopeless:
                for place in same:
                    self._truth.gave_up(place)
                member.pipe.unblock(each.key, partition=each.partition, action="skip")
            else:
                member.pipe.unblock(each.key, partition=each.partition)

    async def _unpark(self, member: Member, key: object) -> None:
        self._unparking.add((member.name, key))
        try:
            with suppress(NoSuchKey, ClosedError):
                await member.pipe.unpark(key)
        finally:
            self._unparking.discard((member.name, key))

    # -- the end -----------------------------------------------------------------------------------

    async def _settle_down(self) -> None:
        """End all faults and repair what was refused, except for given-up records: everything
        settles.
        """
        self._weather.calm()
        self._weather.poison.clear()
        for _ in range(LONGEST):
            await self._clock.sleep(1.0)
            self._check()
            self._share()
            for member in self._open():
                self._unblock(member, skips=False)
            if not self._tasks and self._is_over():
                break
        else:
            open_now = self._open()
            told = [f"{each.pipe.explain()}; {each.inside}" for each in open_now]
            raise LawBroken(f"stuck: {self._missing()} with {told}")
        for name in NAMES:
            self._members[name].stop()
            await self._members[name].end()

    def _is_over(self) -> bool:
        is_stored = not self._missing()
        is_stored = is_stored and not self._store.has_records
        return is_stored and not any(member.inside for member in self._members.values())

    def _missing(self) -> dict[str, int]:
        """The partitions whose position is not at the end."""
        log: MemoryLog = self._log
        return {
            str(partition): log.start(partition).offset
            for partition in log.records
            if log.start(partition).offset < log.end(partition)
        }

    async def _tear_down(self) -> None:
        for task in self._tasks:
            task.cancel()
        for member in self._members.values():
            member.task.cancel()
        await self._clock.sleep(0)
        for member in self._members.values():
            member.task.cancel()
        await asyncio.wait([*self._tasks, *[member.task for member in self._members.values()]])


def replay(seed: int, last: int = 60, **fixed: Any) -> None:
    """Replay a seed; print its settings and the last events before a law was broken."""
    schedule = PipeSchedule(seed, **fixed)
    try:
        schedule.run()
    finally:
        print(schedule.setting)  # noqa: T201
        for event in schedule.history[-last:]:
            print(*event)  # noqa: T201
