"""The streams that a source reads; a subscription keeps its selection.

White box: the slot of a stream.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.streams.source.test_failures import WITHIN, source

from sluicegate import ConfigError
from sluicegate.consumer import TopicPartition
from sluicegate.postgres.streams.selection import slot_of
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

pytestmark = pytest.mark.usefixtures("real_clock")

STREAMS = [
    "order-1",
    "order-2",
    "order-2-eu",
    "order",
    "orders-1",
    "stock-1",
    "a_c-1",
    "abc-1",
    "100%-1",
    "100 -1",
    'it\'s \\ "$1"-1',
]
SELECTIONS: dict[str, tuple[dict[str, Any], list[str], int]] = {
    "category": ({"category": "order"}, ["order-1", "order-2", "order-2-eu", "order"], 256),
    "name": ({"streams": "order-2"}, ["order-2"], 1),
    "names": ({"streams": ["stock-1", "order", "none-1"]}, ["order", "stock-1"], 3),
    "wildcard": ({"streams": "order-*"}, ["order-1", "order-2", "order-2-eu"], 256),
    "wildcard of categories": ({"streams": "*-2*"}, ["order-2", "order-2-eu"], 256),
    "name and wildcard": ({"streams": ["stock-1", "orders*"]}, ["orders-1", "stock-1"], 256),
    "no wildcards of SQL's": ({"streams": ["a_c-*", "100%*"]}, ["a_c-1", "100%-1"], 256),
    "quotes": ({"streams": 'it\'s \\ "$1"-*'}, ['it\'s \\ "$1"-1'], 256),
    "quotes in a category": ({"category": 'it\'s \\ "$1"'}, ['it\'s \\ "$1"-1'], 256),
}


@pytest.mark.parametrize(("options", "wanted", "slots"), SELECTIONS.values(), ids=[*SELECTIONS])
async def test_only_the_selected_streams_are_read(
    log: Log, options: dict[str, Any], wanted: list[str], slots: int
) -> None:
    """S18: every message of them, by the process that has their slots."""
    host, reader = RecordingHost(), source(log, ends=True, **options)
    seen: list[tuple[int, str]] = []
    async with asyncio.timeout(WITHIN), log.connected() as con:
        for stream in STREAMS * 2:
            await log.append(con, stream, 1)
        async with reader.open(host):
            await host.wait_for_claims(slots)
            while (found := await reader.fetch(host.open, 100)) is not None:
                seen += [(r.offset, str(r.key)) for each in found for r in each.records]
    assert [stream for _, stream in sorted(seen)] == [
        each for each in STREAMS if each in wanted
    ] * 2
    assert {claim.partition.topic for claim in host.claims} != {log.schema}


async def test_the_slot_of_a_stream_is_pinned(log: Log) -> None:
    """S19: the first byte of the SHA-256 of its name, in the log and in a source."""
    pinned = {"order-1": 11, "stock-1": 49, "schl\u00fcssel-1": 178, "\U0001f600": 240}
    assert {stream: slot_of(stream) for stream in pinned} == pinned
    async with log.connected() as con:
        for stream, slot in pinned.items():
            await log.append(con, stream, 1)
            row = await con.fetchval(
                f"SELECT slot FROM {log.sql}.message WHERE stream = $1", stream
            )
            assert row == slot


@pytest.mark.parametrize("other", [{}, {"category": "stock"}, {"streams": "order-*"}])
async def test_another_selection_under_the_same_name_is_refused(
    log: Log, other: dict[str, Any]
) -> None:
    """S1: the error says what to do. The subscription is unchanged, and its own selection
    continues.
    """
    first, second = RecordingHost(), RecordingHost()
    reader = source(log, category="order")
    async with asyncio.timeout(WITHIN), log.connected() as con, reader.open(first):
        await first.wait_for_claims(256)
        with pytest.raises(
            ConfigError,
            match=r"'s' reads category order, not .*: use another name .*, or delete .* `sluicegate stream delete`",
        ):
            async with source(log, **other).open(second):
                pass
        assert not second.claims
        await log.append(con, "stock-1", 1)
        await log.append(con, "order-1", 1)
        found = await reader.fetch(first.open, 10)
        assert found is not None
        (record,) = [record for each in found for record in each.records]
        assert record.key == "order-1"
        partition = TopicPartition(f"{log.schema}:order", slot_of("order-1"))
        assert (record.topic, record.partition) == partition


async def test_the_order_of_names_and_repeated_ones_are_no_other_selection(log: Log) -> None:
    """S1: a subscription is identified by the set that it reads."""
    async with asyncio.timeout(WITHIN):
        for streams in (["a-1", "b-*"], ["b-*", "a-1", "a-1"]):
            host = RecordingHost()
            async with source(log, streams=streams).open(host):
                await host.wait_for_claims(256)
