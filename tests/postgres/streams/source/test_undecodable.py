"""Stored messages that Python cannot decode: each is poison alone, for consumers and readers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from tests.postgres.streams.source.stream_help import source_of

from sluicegate import Consumer
from sluicegate.consumer import Poison
from sluicegate.postgres import (
    StreamReader,
    SubscriptionAdmin,
    SyncStreamReader,
    UndecodableMessage,
)
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

pytestmark = pytest.mark.usefixtures("real_clock")

DIGITS = '{"n": 1e5000}'
DEEP = '{"n": ' + "[" * 3_000 + "]" * 3_000 + "}"


async def fill(log: Log, con: Any) -> list[int]:
    """Append 0 to 4 to each of three streams; 1 and 3 of the second one have bad metadata."""
    positions: list[int] = []
    for number in range(5):
        for stream in ("a-1", "bad-1", "c-1"):
            bad = {1: DIGITS, 3: DEEP}.get(number, "{}") if stream == "bad-1" else "{}"
            data = json.dumps({"n": number})
            position = await con.fetchval(
                f"SELECT r_position FROM {log.sql}.append($1, $2::text::jsonb)",
                stream,
                f'[{{"type": "t", "data": {data}, "metadata": {bad}}}]',
            )
            positions.append(position)
    times = {positions[0]: "0044-03-15 BC", positions[2]: "infinity"}
    for position, time in times.items():
        await con.execute(f"UPDATE {log.sql}.message SET at = '{time}' WHERE position = {position}")
    return positions


async def handled(log: Log, **options: Any) -> list[tuple[str, int]]:
    """Handle everything; return stream and number of each message, in order."""
    found: list[tuple[str, int]] = []

    async def handle(message: Any) -> None:
        found.append((message.key, json.loads(message.value)["n"]))

    source = source_of(log, ends=True)
    await Consumer(source, name="s", **options).run(handle)
    return found


async def test_the_others_are_handled_and_it_is_a_dead_letter(log: Log) -> None:
    """O-T18: with its metadata as text, in the order of its stream."""
    letters = MemorySink[Any]()
    async with log.connected() as con:
        await fill(log, con)
    found = await handled(log, poison=Poison("skip", dead_letters=letters))
    for stream in ("a-1", "c-1"):
        assert [number for key, number in found if key == stream] == list(range(5))
    assert [number for key, number in found if key == "bad-1"] == [0, 2, 4]
    assert [letter.cause_type for letter in letters.items] == ["ValueError", "RecursionError"]
    for letter in letters.items:
        (metadata,) = [value for name, value in letter.item["headers"] if name == "metadata"]
        assert isinstance(metadata, bytes)
        assert len(metadata) > 5_000


async def test_it_blocks_its_stream_until_an_operator_skips_it(log: Log) -> None:
    async with log.connected() as con, SubscriptionAdmin(log.dsn, schema=log.schema) as admin:
        positions = await fill(log, con)
        found = await handled(log, poison="block")
        assert [number for key, number in found if key == "bad-1"] == [0]
        assert sorted(number for key, number in found if key != "bad-1") == sorted([*range(5)] * 2)
        (name,) = await admin.lag()
        for position in (positions[4], positions[10]):
            await admin.skip(name, position)
        found = await handled(log, poison="block")
        assert [number for key, number in found if key == "bad-1"] == [2, 4]


async def test_a_reader_raises_in_its_place_and_can_continue_after_it(log: Log) -> None:
    """The messages before it are yielded first, and the error names the next start."""
    async with log.connected() as con:
        positions = await fill(log, con)
        reader = StreamReader(con, schema=log.schema, page=4)
        versions, found = list[int](), list[int]()
        errors: list[UndecodableMessage] = []
        start = first = 0
        while len(versions) < 3:
            try:
                async for message in reader.read("bad-1", start=start):
                    versions.append(message.version)
            except UndecodableMessage as error:
                errors.append(error)
                start = error.version + 1
        assert versions == [0, 2, 4]
        assert [(error.stream, error.version, error.position) for error in errors] == [
            ("bad-1", 1, positions[4]),
            ("bad-1", 3, positions[10]),
        ]
        bad = {positions[at] for at in (0, 2, 4, 10)}  # also times outside of a datetime
        while first <= max(bad):
            try:
                async for message in reader.scan(start=first):
                    found.append(message.position)
                break
            except UndecodableMessage as error:
                first = error.position + 1
        async for message in reader.scan(start=first):
            found.append(message.position)
        assert found == [position for position in positions if position not in bad]
    with psycopg.connect(log.dsn) as sync, pytest.raises(UndecodableMessage, match="start at"):
        list(SyncStreamReader(sync, schema=log.schema).read("bad-1"))
