"""Reads all committed records of a partition, without a group."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as ClientPartition
from aiokafka import errors as kafka

from ..._core.clock import LOOP_CLOCK
from ..._core.errors import UnavailableError
from ..groups.arguments import COMMITTED, milliseconds
from .closing import closed
from .errors import opening_error
from .insides import decode_singly, is_undecodable
from .options import FETCH_WAIT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from ..._core.source import TopicPartition
    from .producer_options import ProducerOptions

PAGE = 5000
"""Number of records in a page."""
PATIENCE = 3
"""Time limit without progress, in request timeouts."""

_STUCK = (
    "%s could not be read from %d on, up to %d, for %g s: a broker does not answer, or a transaction "
    "of another program is open in it"
)
_NO_ENDS = "the ends of %s could not be read in %g s: a broker does not answer"


async def committed_pages(
    options: ProducerOptions, partition: TopicPartition
) -> AsyncGenerator[Sequence[Any]]:
    """Yield the committed records of a partition, from its beginning to its current end, in pages.

    Raises errors of aiokafka, and `UnavailableError` after three times `request_timeout` without
    progress.
    """
    key = ClientPartition(*partition)
    async with _reader(options) as client:
        client.assign([key])
        patience = PATIENCE * options.request_timeout
        try:
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + patience):
                await client.seek_to_beginning(key)
                end = (await client.end_offsets([key]))[key]
                at = await client.position(key)
        except (TimeoutError, kafka.KafkaTimeoutError) as error:
            raise UnavailableError(_NO_ENDS % (partition, patience)) from error
        give_up_at = LOOP_CLOCK.now() + patience
        while at < end:
            if page := await _page(client, key, at):
                yield page
            was, at = at, await client.position(key)
            if at > was:
                give_up_at = LOOP_CLOCK.now() + patience
            elif LOOP_CLOCK.now() >= give_up_at:
                raise UnavailableError(_STUCK % (partition, at, end, patience))


async def _page(client: Any, key: ClientPartition, at: int) -> Sequence[Any]:
    """Return the next records; a header that cannot be decoded is left out."""
    try:
        found: dict[Any, Sequence[Any]] = await client.getmany(
            key, timeout_ms=200, max_records=PAGE
        )
    except Exception as error:
        if not is_undecodable(error):
            raise
        decoded = await decode_singly(client, key, at, PAGE)
        client.seek(key, decoded.next_offset)
        return decoded.records
    return found.get(key, ())


@asynccontextmanager
async def _reader(options: ProducerOptions) -> AsyncIterator[Any]:
    client: Any = AIOKafkaConsumer(
        **options.arguments(),
        isolation_level=COMMITTED,
        auto_offset_reset="none",
        enable_auto_commit=False,
        fetch_max_wait_ms=milliseconds(FETCH_WAIT),
    )
    try:
        try:
            await client.start()
        except Exception as error:
            raise opening_error(error, options.bootstrap) from error
        yield client
    finally:
        await closed(client.stop(), options.close_timeout)
