"""A source of your own on Redis streams, which several processes share.

1. A topic is a few streams, `orders:0` to `orders:3`. All entries of a key are in the same stream.
2. A process owns a stream while it holds its lock: a key with a lease and a token that only this
   process knows. The processes that are alive divide the streams evenly.
3. Redis checks the lock atomically with each read and each acknowledgement. Commands of a process
   that has lost the lock have no effect, so two processes never read a stream concurrently.
4. All owners read as the same consumer of the group. So the next owner inherits the pending
   entries, which were delivered and not acknowledged: it reads them first, and in order.
5. Each entry is acknowledged individually.
6. An entry with a field name that is not UTF-8 is delivered as an `UndecodableRecord`.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from sluicegate import Consumer
from sluicegate.consumer import (
    Fetched,
    Position,
    Record,
    SourceCapabilities,
    TopicPartition,
    UndecodableRecord,
    Unread,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence

    from sluicegate import Message
    from sluicegate.consumer import ClaimHost, SourceClaim

TROUBLES = (RedisError, TimeoutError)
JOIN = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return redis.call('ZCARD', KEYS[1])
"""  # add this member, remove members whose lease has expired, count the rest
KEEP = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
for at = 4, #ARGV do redis.call('XACK', KEYS[2], ARGV[3], ARGV[at]) end
return 1
"""  # renew the lock, or release it with a lease of 0, and acknowledge entries
READ = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
local function read(from, count)
  if count < 1 then return {} end
  local group = {'GROUP', ARGV[2], 'owner', 'COUNT', count, 'STREAMS', KEYS[2], from}
  local found = redis.call('XREADGROUP', unpack(group))
  return found and found[1][2] or {}
end
local entries = read(ARGV[3], tonumber(ARGV[4]))
for _, entry in ipairs(read('>', ARGV[4] - #entries)) do entries[#entries + 1] = entry end
return entries
"""  # pending entries after an id, including those of an interrupted read, then new ones


def offset_of(entry: bytes) -> int:
    """The offset of an id `milliseconds-sequence`, from 0 on; ids begin at `0-1`. A millisecond has
    room for a million entries.
    """
    milliseconds, sequence = map(int, entry.split(b"-"))
    return (milliseconds << 20 | sequence) - 1


def id_of(offset: int) -> str:
    milliseconds, sequence = divmod(offset + 1, 1 << 20)
    return f"{milliseconds}-{sequence}"


@dataclass
class Held:
    """A stream whose lock this process holds."""

    stream: str
    lock: str
    kept: float
    """Time of the lock's last renewal, by the loop's clock."""
    read: int = -1
    """The offset of the last delivered entry."""
    owed: list[int] = field(default_factory=list)
    """Settled offsets that are not acknowledged yet."""


class RedisStreamsSource:
    """One member of a group of processes that share the streams `topic:0` and so on.

    `start` is where a new group begins: `"0"`, `"$"` for the end, or an id, which may be a time in
    milliseconds. `lease` is in seconds: after a crash, others take over after that time.
    """

    capabilities = SourceCapabilities(
        starts=frozenset({"beginning", "end", "time", "offset"}),
        batches=True,
        lag="counts",
        shares="partitions",
        cooperative=True,
        settles_each=True,
    )

    def __init__(
        self,
        url: str,
        topic: str,
        *,
        partitions: int,
        group: str,
        start: str = "0",
        lease: float = 30.0,
    ) -> None:
        self._url = url
        self._topic = topic
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self._group = group
        self._start = start
        self._lease = lease
        self._held: dict[SourceClaim, Held] = {}
        self.capabilities = replace(self.capabilities, revoke_within=lease / 3)

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncIterator[None]:
        self._host, self._token = host, uuid4().hex
        # The client's own timeout can lose a cancellation before Python 3.12. Each command here may
        # be sent twice, and a dead connection is detected at its next use.
        client = Redis.from_url(self._url, socket_timeout=None, retry=Retry(NoBackoff(), 1))
        async with client as self._redis:
            keeper = asyncio.get_running_loop().create_task(self._keep())
            try:
                yield
            finally:
                keeper.cancel()
                await asyncio.wait([keeper])
                held = list(self._held.values())
                self._end(list(self._held))
                with suppress(*TROUBLES):  # the leases expire
                    await self._redis.zrem(self._members, self._token)
                    for each in held:
                        await self._kept(each, lease=0)

    # -- ownership of streams ----------------------------------------------------------------------

    @property
    def _members(self) -> str:
        return f"{self._topic}:{self._group}:members"

    async def _keep(self) -> None:
        """Renew the locks, and share the streams. A claim whose lock cannot be renewed ends before
        the lease does, so that no other process has the stream yet.
        """
        while True:
            trouble = None
            try:
                await self._share()
            except TROUBLES as error:
                trouble = f"Redis: {error}"
            soonest = self._now() - self._lease * 2 / 3
            self._end([claim for claim, held in self._held.items() if held.kept < soonest])
            self._host.reported(trouble)
            await asyncio.sleep(self._lease / 6)  # noqa: TID251  # leases are real time

    async def _share(self) -> None:
        """Renew locks, give up streams beyond an even share, and take free ones up to it."""
        for claim, held in [*self._held.items()]:
            if not await self._kept(held):
                self._end([claim])
        async with self._limit():
            members = await self._redis.eval(JOIN, 1, self._members, self._token, self._lease)
        share = -(-len(self._partitions) // members)
        if surplus := [*self._held][share:]:
            await self._give_up(surplus)
        for partition in self._partitions:
            if len(self._held) < share and not any(c.partition == partition for c in self._held):
                await self._take(partition)

    async def _take(self, partition: TopicPartition) -> None:
        """Begin a claim, if the lock is free."""
        stream = f"{partition.topic}:{partition.partition}"
        held = Held(stream, f"{stream}:{self._group}:lock", self._now())
        until = int(1000 * self._lease)
        async with self._limit():
            taken = await self._redis.set(held.lock, self._token, nx=True, px=until)
        if taken or await self._kept(held):  # the first response may have been lost
            with suppress(ResponseError):  # the group exists
                async with self._limit():
                    await self._redis.xgroup_create(stream, self._group, self._start, mkstream=True)
            first, _ = await self._unsettled(stream)
            held.read = first - 1
            (claim,) = self._host.assigned({partition: Position(first)})
            self._held[claim] = held

    async def _give_up(self, claims: Sequence[SourceClaim]) -> None:
        """Let the host drain these claims, acknowledge settled entries, and release the locks."""
        held = [self._held[claim] for claim in claims]
        try:
            await self.commit(await self._host.revoked(claims, self._lease / 3))
        finally:
            self._end(claims)
        for each in held:
            await self._kept(each, lease=0)

    async def _kept(
        self, held: Held, settled: Iterable[int] = (), *, lease: float | None = None
    ) -> bool:
        """Whether the lock is ours; if so, renew it and acknowledge these offsets."""
        now, until = self._now(), int(1000 * (self._lease if lease is None else lease))
        ids = map(id_of, settled)
        keys = held.lock, held.stream
        async with self._limit():
            is_ours = await self._redis.eval(KEEP, 2, *keys, self._token, until, self._group, *ids)
        held.kept = now if is_ours else held.kept
        return bool(is_ours)

    def _end(self, claims: Collection[SourceClaim]) -> None:
        if ended := [claim for claim in claims if self._held.pop(claim, None) is not None]:
            self._host.ended(ended)

    def __repr__(self) -> str:
        return f"RedisStreamsSource({self._topic!r}, group={self._group!r})"

    def _limit(self) -> asyncio.Timeout:
        return asyncio.timeout(self._lease / 6)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # -- delivery and acknowledgement --------------------------------------------------------------

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched]:
        while True:
            try:
                if found := await self._read(claims, most):
                    return found
                await self._wait([self._held[claim] for claim in claims if claim in self._held])
            except TROUBLES:  # the keeper reports it if it lasts
                await asyncio.sleep(0.1)  # noqa: TID251  # a server takes real time to return

    async def _read(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched]:
        """Read entries; those of a cancelled read are pending, and are read again."""
        answers: dict[SourceClaim, list[tuple[int, Any]]] = {}
        for claim in claims:
            if most > 0 and (held := self._held.get(claim)):
                given = self._token, self._group, id_of(held.read), most
                async with self._limit():
                    entries = await self._redis.eval(READ, 2, held.lock, held.stream, *given)
                if entries is None:  # the lock is lost
                    self._end([claim])
                elif entries:
                    answers[claim] = [(offset_of(entry), fields) for entry, fields in entries]
                    most -= len(entries)
        found: list[Fetched] = []
        for claim, read in answers.items():  # without an await from here on
            if held := self._held.get(claim):
                held.read = read[-1][0]
                held.owed += [offset for offset, fields in read if not fields]  # deleted meanwhile
                records = [_record(claim, offset, fields) for offset, fields in read if fields]
                found.append(Fetched(claim, records, held.read + 1))
        return found

    async def _wait(self, held: Collection[Held]) -> None:
        """Wait for new entries in one of these streams, at most a twelfth of a lease."""
        seconds = self._lease / 12
        if not held:
            await asyncio.sleep(seconds)  # noqa: TID251  # until a fetch has held claims
            return
        last: dict[Any, Any] = {each.stream: id_of(each.read) for each in held}
        async with self._limit():
            await self._redis.xread(last, count=1, block=int(1000 * seconds))

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        stored: list[SourceClaim] = []
        for claim in positions:
            if held := self._held.get(claim):
                # If this fails, the next commit acknowledges them.
                held.owed += claim.take_settled().offsets
                acknowledged = list(held.owed)
                if not await self._kept(held, acknowledged):
                    self._end([claim])
                elif claim in self._held:
                    del held.owed[: len(acknowledged)]
                    stored.append(claim)
        return stored

    async def _unsettled(self, stream: str) -> tuple[int, int | None]:
        """The offset of the first unsettled entry, and the number of unsettled ones, if known."""
        async with self._limit():
            pending = await self._redis.xpending(stream, self._group)
            groups = await self._redis.xinfo_groups(stream)
            group = next(each for each in groups if each["name"].decode() == self._group)
            last = group["last-delivered-id"]
            new = await self._redis.xrange(stream, min="(" + last.decode(), count=1)
        first: Any = pending["min"] or (new[0][0] if new else None)
        count = None if group.get("lag") is None else pending["pending"] + group.get("lag")
        return (offset_of(last) + 1 if first is None else offset_of(first)), count

    async def lag(self, positions: Mapping[SourceClaim, int]) -> Mapping[SourceClaim, Unread]:
        lags: dict[SourceClaim, Unread] = {}
        seconds, _ = await self._redis.time()
        for claim in positions:
            if held := self._held.get(claim):
                first, count = await self._unsettled(held.stream)
                if count is not None:  # Redis does not know it after a deleted entry
                    age = max(0.0, seconds - (first >> 20) / 1000)
                    lags[claim] = Unread(count, age if count else 0.0)
        return lags

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        held = {claim: self._held[claim].stream for claim in claims if claim in self._held}
        infos = {claim: await self._redis.xinfo_stream(each) for claim, each in held.items()}
        return {claim: offset_of(each["last-generated-id"]) + 1 for claim, each in infos.items()}


def _record(claim: SourceClaim, offset: int, flat: Sequence[bytes]) -> Record:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    key, value = fields.pop(b"key", None), fields.pop(b"value", None)
    topic, partition = claim.partition
    found, at = (topic, partition, offset, key, value), offset + 1 >> 20
    try:
        headers = [(name.decode(), data) for name, data in fields.items()]
    except UnicodeDecodeError as error:  # of this entry only
        return UndecodableRecord(*found, timestamp=at, error=error)
    return Record(*found, headers, timestamp=at)


async def place(redis: Redis, topic: str, partitions: int, key: str, value: str) -> None:
    """Append an entry to the stream of its key."""
    stream = f"{topic}:{zlib.crc32(key.encode()) % partitions}"
    await redis.xadd(stream, {"key": key, "value": value})


async def book(message: Message) -> None:
    print(f"{message.key.decode()} {message.value.decode()}")


async def main() -> None:
    url = os.environ.get("REDIS_URL", "redis://localhost:6379")
    async with Redis.from_url(url) as redis:
        for key, value in [("ann", "placed"), ("dan", "placed"), ("ann", "paid")]:
            await place(redis, "orders", 4, key, value)
    consumer = Consumer(RedisStreamsSource(url, "orders", partitions=4, group="book"), name="book")
    asyncio.get_running_loop().call_later(1.0, consumer.stop)
    print(await consumer.run(book))


if __name__ == "__main__":
    asyncio.run(main())
