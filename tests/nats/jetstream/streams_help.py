"""Streams created, filled and read by an independent client."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import StorageType, StreamConfig, SubjectTransform

from sluicegate.nats import partitioned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from nats.js.api import ConsumerInfo, StreamInfo
    from nats.js.client import JetStreamContext

    from sluicegate.testing import EmbeddedNats

CHECK_EVERY = 0.03


async def _ignored(error: Exception) -> None:
    """Print nothing."""


class Stream:
    """A stream with the subjects below its name, and the messages published to it."""

    def __init__(self, server: EmbeddedNats, client: Client, partitions: int | None) -> None:
        self.server = server
        self.name = f"S{secrets.token_hex(4)}"
        self.partitions = partitions
        self.stored: dict[int, str] = {}
        """The keys by sequence number."""
        self.client = client
        self._ids = itertools.count()

    @property
    def js(self) -> JetStreamContext:
        return self.client.jetstream(timeout=5)

    async def create(self, **config: Any) -> None:
        given: dict[str, Any] = {"storage": StorageType.FILE, **config}
        if self.partitions is not None:
            source, destination = partitioned(f"{self.name}.*", self.partitions)
            given["subject_transform"] = SubjectTransform(src=source, dest=destination)
        await self.js.add_stream(StreamConfig(name=self.name, subjects=[f"{self.name}.*"], **given))

    async def publish(self, key: str, *payloads: str) -> list[int]:
        """Publish messages of a key, each once, however often the server is unavailable."""
        return [await self._stored(key, payload) for payload in payloads]

    async def _stored(self, key: str, payload: str) -> int:
        headers = {"Nats-Msg-Id": f"{self.name}-{next(self._ids)}"}
        while True:
            try:
                told = await self.js.publish(
                    f"{self.name}.{key}", payload.encode(), timeout=1, headers=headers
                )
            except (NatsError, TimeoutError):
                await asyncio.sleep(CHECK_EVERY)
                continue
            self.stored[told.seq] = self.key(key)
            return told.seq

    def key(self, key: str) -> str:
        """The key of records whose messages are published under this key: their subject."""
        return f"{self.name}.{key}"

    async def produce(self, keys: Iterable[str], payload: str = "") -> None:
        """Publish a message for each of these keys."""
        for key in keys:
            await self.publish(key, payload)

    # -- the server's state ------------------------------------------------------------------------

    async def info(self) -> StreamInfo:
        return await self.js.stream_info(self.name)

    async def consumers(self, durable: str = "d") -> list[ConsumerInfo]:
        """The consumers of the source; a group has one per partition."""
        if self.partitions is None:
            return [await self.js.consumer_info(self.name, durable)]
        return [
            await self.js.consumer_info(self.name, f"{durable}-{number}")
            for number in range(self.partitions)
        ]

    async def unsettled(self) -> int:
        """The number of messages that are pending or not delivered."""
        told = await self.consumers()
        return sum([(each.num_ack_pending or 0) + (each.num_pending or 0) for each in told])

    async def pending(self) -> int:
        """The number of messages delivered but not acknowledged."""
        return sum([each.num_ack_pending or 0 for each in await self.consumers()])

    async def until_unsettled(self, most: int = 0) -> None:
        """Wait until at most this many messages are unsettled."""

        async def is_met() -> bool:
            return await self.unsettled() <= most

        await until(is_met)

    async def until_pending(self, least: int) -> None:
        """Wait until this many messages are delivered but not acknowledged."""

        async def is_met() -> bool:
            return await self.pending() >= least

        await until(is_met)


async def until(is_met: Callable[[], Awaitable[bool]]) -> None:
    """Poll until this holds, even while the server is unavailable."""
    while True:
        with suppress(NatsError, TimeoutError):
            if await is_met():
                return
        await asyncio.sleep(CHECK_EVERY)


@asynccontextmanager
async def plain(server: EmbeddedNats, **options: Any) -> AsyncIterator[Client]:
    """A client of nats-py without Sluicegate."""
    client = Client()
    try:
        await client.connect(
            server.url,
            error_cb=_ignored,
            max_reconnect_attempts=-1,
            reconnect_time_wait=CHECK_EVERY,  # type: ignore[arg-type]  # it takes any number
            **options,
        )
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def new_stream(
    server: EmbeddedNats,
    partitions: int | None = None,
    *,
    login: dict[str, str] | None = None,
    **config: Any,
) -> AsyncIterator[Stream]:
    """A new stream, stored in files unless the settings say otherwise."""
    async with plain(server, **(login or {})) as client:
        stream = Stream(server, client, partitions)
        await stream.create(**config)
        yield stream
