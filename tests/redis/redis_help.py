"""A Redis that is read by a separate client."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import redis as redis_py
from sluicegate import RowBatch, send
from sluicegate.redis import RedisSink

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from tests.redis_server import RedisServer

STREAM = "events"


class Store:
    """The stream `events`."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.url = server.url
        self.client: Any = redis_py.Redis.from_url(server.url)

    def __enter__(self) -> Self:
        self.client.flushdb()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    @staticmethod
    @contextmanager
    def beside(store: Store) -> Iterator[Any]:
        """A second client."""
        client: Any = redis_py.Redis.from_url(store.url)
        with client:
            yield client

    def entries(self, name: str = STREAM) -> list[tuple[str, dict[bytes, bytes]]]:
        """The entries of a stream, with their ids."""
        return [(entry.decode(), fields) for entry, fields in self.client.xrange(name)]

    def numbers(self, name: str = STREAM) -> list[int]:
        """The fields `n` of a stream."""
        return [int(fields[b"n"]) for _, fields in self.entries(name)]

    def sink(self, **options: Any) -> RedisSink:
        """A sink of the stream, if nothing else is given."""
        if not {"stream", "stream_field"} & options.keys():
            options["stream"] = STREAM
        return RedisSink(options.pop("url", self.url), **options)


async def written(sink: Any, items: Sequence[Any], **options: Any) -> dict[int, BaseException]:
    """Write items in one batch; return the errors."""
    return await send(sink, RowBatch(items, **options))


def names(errors: dict[int, BaseException]) -> dict[int, str]:
    """The types of errors."""
    return {index: type(error).__name__ for index, error in errors.items()}
