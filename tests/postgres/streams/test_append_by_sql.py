"""The SQL function `append`, called with JSON that was not checked by `NewMessage`.

White box: the code of the error that the function raises.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import pytest

from sluicegate.postgres.streams.log import BAD_MESSAGE

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

GOOD = {"type": "Placed", "data": {"n": 1}}
WRONG: tuple[Any, ...] = (
    None,
    1,
    "Placed",
    [],
    [GOOD],
    {},
    {"type": "Placed"},
    {"data": 1},
    {**GOOD, "type": None},
    {**GOOD, "type": 1},
    {**GOOD, "type": ""},
    {**GOOD, "type": []},
    {**GOOD, "type": ["Placed"]},
    {**GOOD, "type": {"type": "Placed"}},
    {**GOOD, "metadata": None},
    {**GOOD, "metadata": "x"},
    {**GOOD, "metadata": []},
    {**GOOD, "metadata": [{}]},
)
RIGHT: tuple[dict[str, Any], ...] = (
    {**GOOD, "data": None},
    {**GOOD, "data": []},
    {**GOOD, "data": "text"},
    {**GOOD, "data": [[{"type": 1}]]},
    {**GOOD, "metadata": {}},
    {**GOOD, "metadata": {"a": [None]}},
    {**GOOD, "id": None},
)


async def append(con: Any, log: Log, stream: str | None, messages: Any) -> list[Any]:
    text = None if messages is None else json.dumps(messages)
    found: list[Any] = await con.fetch(
        f"SELECT r_version, r_id, r_is_new FROM {log.sql}.append($1, $2::text::jsonb)", stream, text
    )
    return found


def test_a_wrong_message_is_named_and_nothing_is_appended(log: Log) -> None:
    """Whatever its index."""

    async def run() -> None:
        async with log.connected() as con:
            for wrong in WRONG:
                for at, messages in enumerate(([wrong, GOOD], [GOOD, wrong], [GOOD, GOOD, wrong])):
                    with pytest.raises(asyncpg.PostgresError) as caught:
                        await append(con, log, "order-1", messages)
                    assert caught.value.sqlstate == BAD_MESSAGE, wrong
                    assert str(caught.value).startswith(f"message {at} must have a type"), wrong
            assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.message") == 0

    asyncio.run(run())


def test_a_call_without_messages_or_stream_is_refused(log: Log) -> None:
    async def run() -> None:
        async with log.connected() as con:
            for stream, messages, told in (
                ("", [GOOD], "the name of a stream"),
                (None, [GOOD], "the name of a stream"),
                ("order-1", None, "messages must be a JSON array"),
                ("order-1", [], "messages must be a JSON array"),
                ("order-1", GOOD, "messages must be a JSON array"),
            ):
                with pytest.raises(asyncpg.PostgresError, match=told) as caught:
                    await append(con, log, stream, messages)
                assert caught.value.sqlstate == BAD_MESSAGE

    asyncio.run(run())


def test_every_form_of_a_message_is_taken(log: Log) -> None:
    async def run() -> None:
        async with log.connected() as con:
            rows = await append(con, log, "order-1", list(RIGHT))
            assert [row["r_version"] for row in rows] == list(range(len(RIGHT)))
            assert all(row["r_is_new"] for row in rows)

    asyncio.run(run())


def test_ids_are_found_wherever_they_are_among_the_messages(log: Log) -> None:
    """The first message may have none."""

    async def run() -> None:
        named = {**GOOD, "id": str(uuid4())}
        async with log.connected() as con:
            first = await append(con, log, "order-1", [named])
            (again,) = await append(con, log, "order-1", [named])
            assert (again["r_id"], again["r_is_new"]) == (first[0]["r_id"], False)
            with pytest.raises(asyncpg.PostgresError, match="message 0 with the id NULL is not"):
                await append(con, log, "order-1", [GOOD, named])

    asyncio.run(run())


def test_versions_go_on_behind_a_stream_whose_messages_were_deleted(log: Log) -> None:
    async def run() -> None:
        async with log.connected() as con:
            await append(con, log, "order-1", [GOOD, GOOD])
            await con.execute(f"SELECT {log.sql}.delete_stream('order-1', -1, 9, 10, true)")
            last = f"SELECT {log.sql}.last_version($1)"
            assert await con.fetchval(last, "order-1") == 1
            assert await con.fetchval(last, "order-2") == -1
            (row,) = await append(con, log, "order-1", [GOOD])
            assert row["r_version"] == 2

    asyncio.run(run())


def test_messages_that_are_known_are_confirmed_by_a_commit_that_waits_for_a_synchronous_standby(
    log: Log,
) -> None:
    """The commit that added them may have been cut off while it waited. A transaction that writes
    nothing would report messages that a failover loses.
    """
    one_by_one = (
        f"SELECT r_state FROM {log.sql}.append_each"
        f"(ARRAY['order-1'], ARRAY['t'], ARRAY['1'], ARRAY['{{}}'], ARRAY['{uuid4()}'], "
        "ARRAY[NULL::bigint], ARRAY[NULL::int], false)"
    )

    async def run() -> None:
        named = {**GOOD, "id": str(uuid4())}
        async with log.connected() as con:
            for call in (
                lambda: append(con, log, "order-1", [named]),
                lambda: con.fetch(one_by_one),
            ):
                await call()
                before = await con.fetchval("SELECT pg_current_wal_insert_lsn()")
                async with con.transaction():
                    await call()
                    written = (
                        "SELECT pg_current_xact_id_if_assigned() IS NOT NULL "
                        "AND pg_current_wal_insert_lsn() > $1"
                    )
                    assert await con.fetchval(written, before)

    asyncio.run(run())
