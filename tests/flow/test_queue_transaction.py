"""Flows from a queue into a table of the same database: each job has one row, in order per key."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from queue_flows import KINDS, FlowQueue, Kind, flow_queue, running, with_kinds

from sluicegate import PermanentError, Terminate, ToDeadLetter
from sluicegate.consumer import Commits, Skip

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

JOBS = 100
MEMBERS = 3
ORDERED = {"ordering_required": True, "poison": "block"}


@pytest.mark.parametrize(("kind", "options"), with_kinds({}, ORDERED, {"sticky": True}))
async def test_each_job_is_committed_once_and_in_order(
    embedded_postgres: EmbeddedPostgres, kind: Kind, options: dict[str, Any]
) -> None:
    """Q-T11, R6: with and without keys; with several members at once."""
    async with flow_queue(embedded_postgres.dsn, **options) as made:
        await made.produce(JOBS, random.Random(4))
        flows = [
            made.flow(kind, source=made.source(per_key=3, ends=False), commits=Commits(after=2))
            for _ in range(MEMBERS)
        ]
        async with asyncio.TaskGroup() as tasks:
            for each in flows:
                tasks.create_task(each.run())
            await made.produce(JOBS, random.Random(5))
            await made.handled()
            for each in flows:
                each.stop()
        await made.assert_exact()


@pytest.mark.parametrize("kind", KINDS)
async def test_rows_and_settled_jobs_are_of_one_transaction(
    embedded_postgres: EmbeddedPostgres, kind: Kind
) -> None:
    """R6: no other session sees only one of them."""
    async with flow_queue(embedded_postgres.dsn) as made:
        places = await made.enqueue("k", *"abcdef")
        turn = asyncio.Lock()
        both = "SELECT place FROM {s}.job UNION ALL SELECT place FROM {s}.effect ORDER BY 1"

        async def look(_: Message) -> None:
            async with turn:
                rows = await made.con.fetch(both.format(s=made.log.sql))
            assert [row["place"] for row in rows] == places

        await made.flow(kind, look, source=made.source(per_key=3), commits=Commits(after=2)).run()
        assert await made.places() == places


@pytest.mark.parametrize("kind", KINDS)
async def test_a_job_without_rows_is_settled(
    embedded_postgres: EmbeddedPostgres, kind: Kind
) -> None:
    """Alone and between other jobs."""
    async with flow_queue(embedded_postgres.dsn) as made:
        places = await made.enqueue("k", "skip", "a", "skip", "b")
        await made.enqueue("l", "skip")
        await made.enqueue(None, "skip")

        async def skip(message: Message) -> object:
            return Skip() if word(message) == "skip" else None

        await made.flow(kind, skip).run()
        assert await made.waiting() == await made.letters() == []
        if kind == "rows":
            assert await made.places() == [places[1], places[3]]
        assert await made.ask("SELECT count(*) FROM {schema}.lane") == 0


UNSETTLED = "SELECT count(*) FROM {schema}.effect JOIN {schema}.job USING (place)"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lane_that_is_locked_rolls_back_the_transactions_of_its_key_only(
    embedded_postgres: EmbeddedPostgres, kind: Kind
) -> None:
    """R6: by another session, such as an operator's; no row is committed without its job."""
    async with flow_queue(embedded_postgres.dsn) as made, made.log.connected() as operator:
        await made.enqueue("k", *"ab")
        begun, gate = asyncio.Event(), asyncio.Event()

        async def hold(message: Message) -> None:
            if message.key == "k":
                begun.set()
                await gate.wait()

        async with running(made.flow(kind, hold, source=made.source(ends=False))):
            await begun.wait()
            async with operator.transaction():
                await operator.fetch(f"SELECT FROM {made.log.sql}.lane WHERE key = 'k' FOR UPDATE")
                gate.set()
                others = [await made.enqueue(key, *"ab") for key in "lm"]
                await made.handled(but=2)
                await made.until_waits("transactionid")
                await made.until("SELECT count(*) FROM pg_locks WHERE NOT granted")
                assert sorted(await made.places()) == sorted(
                    [place for each in others for place in each]
                )
                assert await made.ask(UNSETTLED) == 0
            await made.handled()
        await made.assert_exact()


# -- jobs that cannot be handled -------------------------------------------------------------------

REPAIR = "UPDATE {schema}.job SET payload = '\"g\"' WHERE place = $1"
STRATEGIES = ("skip", "block", "block_and_dead_letter", "park_key")
ALTERNATELY = (("rows", "k"), ("effects", None), ("rows", None), ("effects", "k"))
HOWS = ("end", "raise", "refused")


def word(message: Message) -> str:
    """The payload of a job."""
    assert isinstance(message.value, bytes)
    return str(json.loads(message.value))


async def spoil(message: Message) -> object:
    """Return the result that the payload names."""
    said = word(message)
    if said == "raise":
        raise PermanentError("spoiled")
    return {"bury": ToDeadLetter("unwanted"), "end": Terminate("spoiled")}.get(said)


async def settled_as(made: FlowQueue, key: str | None) -> tuple[int | None, list[int]]:
    """The state of a key, or of the jobs without a key, and the remaining jobs."""
    state = (
        "SELECT state FROM {schema}.lane WHERE key = $1 AND lease IS NULL"
        if key
        else "SELECT max(state) FROM {schema}.job WHERE $1::text IS NULL AND lease IS NULL"
    )
    found = await made.con.fetchval(state.format(schema=made.log.sql), key)
    return found, await made.waiting()


@pytest.mark.parametrize(
    ("kind", "poison", "how"),
    [
        pytest.param(kind, poison, how, marks=() if how == HOWS[(s + k) % 3] else pytest.mark.long)
        for k, kind in enumerate(KINDS)
        for s, poison in enumerate(STRATEGIES)
        for how in HOWS
    ],
)
async def test_the_queue_decides_what_becomes_of_a_job_that_cannot_be_handled(
    embedded_postgres: EmbeddedPostgres, kind: Kind, poison: str, how: str
) -> None:
    """Q9, Q-T15: jobs before it are committed, those behind it wait or continue; at most one dead
    letter. Other keys continue.
    """
    async with flow_queue(embedded_postgres.dsn, poison=poison) as made:
        key = await made.enqueue("k", "a", "b", how, "c", "d")
        other = await made.enqueue("l", "e", "f")
        await made.flow(kind, spoil).run()
        rows = await made.places()
        goes_on = poison == "skip"
        assert [each for each in rows if each in key] == (
            [*key[:2], *key[3:]] if goes_on else key[:2]
        )
        assert [each for each in rows if each in other] == other
        assert await made.letters() == ([key[2]] if "dead" in poison or goes_on else [])
        state = {"skip": None, "park_key": 2}.get(poison, 1)
        assert await settled_as(made, "k") == (state, [] if goes_on else key[2:])
        if goes_on:
            return
        await made.con.execute(REPAIR.format(schema=made.log.sql), key[2])
        resume = f"SELECT {made.log.sql}.resume_lane('q', 'k', false, false)"
        assert await made.con.fetchval(resume) == "ready"
        await made.flow(kind, spoil).run()
        assert [each for each in await made.places() if each in key] == key
        assert await made.letters() == await made.waiting() == []


@pytest.mark.parametrize(
    ("kind", "poison", "key"),
    [
        pytest.param(
            kind,
            poison,
            key,
            marks=() if (kind, key) == ALTERNATELY[number % 4] else pytest.mark.long,
        )
        for kind in KINDS
        for number, poison in enumerate(STRATEGIES)
        for key in ("k", None)
    ],
)
async def test_a_job_that_is_to_be_a_dead_letter_is_one_whatever_the_queue_says(
    embedded_postgres: EmbeddedPostgres, kind: Kind, poison: str, key: str | None
) -> None:
    """Q9, Q-T15: the jobs behind it continue."""
    async with flow_queue(embedded_postgres.dsn, poison=poison) as made:
        places = await made.enqueue(key, "a", "bury", "b", "c")
        await made.flow(kind, spoil).run()
        assert sorted(await made.places()) == [places[0], *places[2:]]
        assert await made.letters() == [places[1]]
        assert await made.waiting() == []


@pytest.mark.parametrize(("kind", "poison"), with_kinds(*STRATEGIES))
async def test_a_spoiled_job_without_a_key_stops_no_other(
    embedded_postgres: EmbeddedPostgres, kind: Kind, poison: str
) -> None:
    """Q9, Q-T7."""
    async with flow_queue(embedded_postgres.dsn, poison=poison) as made:
        places = await made.enqueue(None, "a", "end", "b")
        await made.flow(kind, spoil).run()
        assert sorted(await made.places()) == [places[0], places[2]]
        is_letter = poison in {"skip", "block_and_dead_letter"}
        assert await made.letters() == ([places[1]] if is_letter else [])
        state = {"skip": None, "park_key": 2}.get(poison, 1)
        assert await settled_as(made, None) == (state, [] if poison == "skip" else [places[1]])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_spoiled_job_stops_an_ordered_queue(
    embedded_postgres: EmbeddedPostgres, kind: Kind
) -> None:
    """Q-T10: no later job of any key is committed; there is exactly one dead letter."""
    options: dict[str, Any] = {**ORDERED, "poison": "block_and_dead_letter"}
    async with flow_queue(embedded_postgres.dsn, **options) as made:
        places = [
            *await made.enqueue("k", "a"),
            *await made.enqueue("l", "end"),
            *await made.enqueue(None, "b"),
            *await made.enqueue("k", "c"),
        ]
        for _ in range(2):
            await made.flow(kind, spoil).run()
            assert await made.places() == places[:1]
            assert await made.letters() == [places[1]]
        assert await made.waiting() == places[1:]


@pytest.mark.parametrize("kind", KINDS)
async def test_exit_ends_the_flow_and_gives_the_job_back(
    embedded_postgres: EmbeddedPostgres, kind: Kind
) -> None:
    """S-T13: jobs before it are committed; the next flow begins with it, whatever the queue's
    strategy.
    """
    async with flow_queue(embedded_postgres.dsn) as made:
        places = await made.enqueue("k", "a", "raise", "b")
        for _ in range(2):
            with pytest.raises(PermanentError, match="spoiled"):
                await made.flow(kind, spoil, poison="exit").run()
            assert await made.places() == places[:1]
            assert await settled_as(made, "k") == (0, places[1:])
        assert await made.letters() == []
