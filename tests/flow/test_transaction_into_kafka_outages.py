"""Lost answers, broker failures and missing permissions under a transactional flow from Kafka into
Kafka.

White box: transactions without a consumer, and the broker's codes.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import for_code
from aiokafka.protocol.admin import CreateAclsRequest
from aiokafka.protocol.transaction import EndTxnRequest
from kept_topic import Made, assert_once_and_in_order, ended, kept_topic, running
from tests.kafka.source.kafka_help import admin_of, fill
from tests.kafka.source.own_help import USER, login
from tests.kafka.source.proxy_help import Api, proxied
from tests.kafka.source.storm_help import log_lines

from sluicegate import RefusedError, RowBatch, UnavailableError, send, transaction
from sluicegate._core.positions import PositionUnit
from sluicegate.consumer import Commits, Position
from sluicegate.kafka.client.answers import FENCED

if TYPE_CHECKING:
    from tests.kafka.source.own_help import OwnKafka
    from tests.kafka.source.proxy_help import Direction, Frame

    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")

KINDS = [
    Api.PRODUCE,
    Api.INIT_PRODUCER,
    Api.ADD_PARTITIONS,
    Api.ADD_OFFSETS,
    Api.TRANSACTION_COMMIT,
    Api.END_TRANSACTION,
]
"""The requests of a transaction."""


@pytest.mark.long
@pytest.mark.parametrize("direction", [pytest.param("request", marks=pytest.mark.soak), "answer"])
@pytest.mark.parametrize("api", KINDS, ids=lambda api: api.name.lower())
async def test_what_is_lost_of_a_transaction_costs_no_record_and_repeats_none(
    broker: EmbeddedKafka, api: Api, direction: Direction
) -> None:
    """Lost once at first, and three more times later. If the answer of the commit is lost, it was
    applied.
    """
    kept = await kept_topic(broker, 2)
    counts = {0: 400, 1: 400}
    for part in counts:
        await fill(broker, kept.source_topic, 400, partition=part)
    chance = random.Random(0)
    claims: list[Frame] = []

    def watch(frame: Frame) -> None:
        if b"sluicegate:" in frame.body:
            claims.append(frame)

    async with proxied(broker, watch) as proxy:
        is_initial = api is Api.INIT_PRODUCER
        gates = [proxy.hold(api, direction, lambda _: bool(claims))]  # not the sink's own id

        async def lose() -> None:
            for _ in range(4):
                await gates[-1].arrived.wait()
                gate = gates[-1]
                await asyncio.sleep(chance.random() * 0.05)
                gate.cut()
                if is_initial:
                    return
                gates.append(proxy.hold(api, direction))
            gates[-1].open()

        losing = asyncio.ensure_future(lose())
        async with running(
            kept.source(), kept.sink(proxy.bootstrap), commits=Commits(every=0.05, after=20)
        ) as flow:
            await losing
            await flow.stored(counts)
    assert_once_and_in_order(await kept.readable(), counts)


@pytest.mark.parametrize("direction", ["request", "answer"])
async def test_a_commit_without_any_answer_is_read_back(
    broker: EmbeddedKafka, direction: Direction
) -> None:
    """All attempts of a commit are held. The next transaction determines the outcome, and the late
    attempts are refused.
    """
    kept = await kept_topic(broker)
    await fill(broker, kept.source_topic, 60)
    async with proxied(broker) as proxy:
        gate = proxy.hold(Api.END_TRANSACTION, direction)
        sink = kept.sink(proxy.bootstrap, request_timeout=0.3)
        async with running(kept.source(), sink, commits=Commits(every=0.05, after=20)) as flow:
            await proxy.heard(Api.INIT_PRODUCER, "answer", 3)  # sink, claim, recovery
            gate.open()
            await flow.stored({0: 60})
    assert_once_and_in_order(await kept.readable(), {0: 60})


async def test_a_late_commit_is_refused(broker: EmbeddedKafka) -> None:
    """A commit of unknown outcome arrives after the next transaction has begun."""
    kept = await kept_topic(broker)
    unit = PositionUnit(kept.group, kept.at(0), Position(1))
    async with kept.sink() as sink:
        await sink.claim_positions(kept.group, [kept.at(0)])
        claims: Any = sink._claims
        producer = await claims.producer(unit)
        number, epoch = producer._id
        await producer.recover()
        with pytest.raises(ZeroDivisionError):
            async with transaction(sink, unit) as tx:
                await send(tx, RowBatch([{"part": 0, "at": 1, "key": "a"}]))
                late = EndTxnRequest(producer._transactional_id, number, epoch, True)
                answer = await producer._client.send(await producer._transactions._find(), late)
                assert answer.error_code in FENCED
                raise ZeroDivisionError
    assert await kept.readable() == []
    assert await kept.stored() == {}


@pytest.mark.parametrize("direction", ["request", "answer"])
async def test_a_new_epoch_without_any_answer_is_taken_later(
    broker: EmbeddedKafka, direction: Direction
) -> None:
    """An earlier request may have superseded its own sender by then; no position is lost."""
    kept = await kept_topic(broker)
    unit = PositionUnit(kept.group, kept.at(0), Position(1))
    async with proxied(broker) as proxy, kept.sink(proxy.bootstrap, request_timeout=0.3) as sink:
        await sink.claim_positions(kept.group, [kept.at(0)])
        claims: Any = sink._claims
        producer = await claims.producer(unit)
        gate = proxy.hold(Api.INIT_PRODUCER, direction)
        with pytest.raises(UnavailableError):
            await producer.recover()
        gate.open()
        async with transaction(sink, unit) as tx:
            await send(tx, RowBatch([{"part": 0, "at": 1, "key": "a"}]))
    assert await kept.readable() == [Made(0, 1, "a")]
    assert await kept.stored() == {0: Position(1)}


@pytest.mark.long
async def test_a_transaction_that_takes_too_long_is_aborted_and_comes_again(
    broker: EmbeddedKafka,
) -> None:
    """The broker ends it and fences its producer, which claims the partition again."""
    kept = await kept_topic(broker)
    await fill(broker, kept.source_topic, 60)
    async with proxied(broker) as proxy:
        gate = proxy.hold(Api.ADD_OFFSETS, "request")
        sink = kept.sink(proxy.bootstrap, request_timeout=40.0, transaction_timeout=1.0)
        async with log_lines() as log, running(kept.source(), sink, seconds=90) as flow:
            await gate.arrived.wait()
            await ended(broker, kept.topic)
            gate.open()
            await log.wait("transaction_timeout has passed")
            await log.wait("is claimed again")
            await flow.stored({0: 60})
    assert_once_and_in_order(await kept.readable(), {0: 61})


async def test_a_slow_transform_is_outside_the_transaction(broker: EmbeddedKafka) -> None:
    kept = await kept_topic(broker)
    await fill(broker, kept.source_topic, 5)

    async def transform(message: Any) -> Any:
        await asyncio.sleep(1.5)
        return {"part": 0, "at": message.offset, "key": message.key.decode()}

    sink = kept.sink(transaction_timeout=1.0)
    async with running(kept.source(), sink, transform=transform) as flow:
        await flow.stored({0: 5})
    assert_once_and_in_order(await kept.readable(), {0: 5})


# -- brokers ---------------------------------------------------------------------------------------


@pytest.mark.long
async def test_a_broker_that_is_killed_at_random_moments_costs_and_repeats_nothing(
    own_broker: OwnKafka,
) -> None:
    kept = await kept_topic(own_broker, 2)
    counts = {0: 2_000, 1: 2_000}
    for part in counts:
        await fill(own_broker, kept.source_topic, 2_000, partition=part)
    chance = random.Random(0)
    async with running(
        kept.source(session_timeout=30.0), kept.sink(), commits=Commits(every=0.05, after=10)
    ) as flow:
        for at in (200, 600, 1_200):
            await flow.stored({0: at})
            await asyncio.sleep(chance.random() * 0.1)
            await asyncio.to_thread(own_broker.restart_at_once)
        await flow.stored(counts)
    assert_once_and_in_order(await kept.readable(), counts)


@pytest.mark.long
async def test_a_stop_ends_in_time_without_a_broker(own_broker: OwnKafka) -> None:
    kept = await kept_topic(own_broker)
    await fill(own_broker, kept.source_topic, 3_000)
    flow = running(
        kept.source(close_timeout=0.5), kept.sink(), commits=Commits(every=0.05, after=5)
    )
    try:
        async with flow as running_flow:
            await running_flow.stored({0: 100})
            await asyncio.to_thread(own_broker.kill)
            async with asyncio.timeout(15):
                await running_flow.stop()
    finally:
        await asyncio.to_thread(own_broker.start)
    await fill(own_broker, kept.source_topic, 10)
    async with running(kept.source(), kept.sink()) as again:
        await again.stored({0: 3_010})
    assert_once_and_in_order(await kept.readable(), {0: 3_010})


# -- rights ----------------------------------------------------------------------------------------

_TOPIC, _GROUP, _TRANSACTIONAL, _LITERAL, _ALL, _ALLOW = 2, 3, 5, 3, 2, 3


async def _grant(broker: OwnKafka, kind: int, name: str) -> None:
    asked = CreateAclsRequest(kind, name, _LITERAL, f"User:{USER}", "*", _ALL, _ALLOW)
    async with admin_of(broker) as admin:
        answer = await admin._send_request(asked)
    for code, told in answer.creation_responses:
        if code:
            raise for_code(code)(told)


@pytest.mark.long
async def test_missing_rights_are_told_with_their_repair(own_broker: OwnKafka) -> None:
    kept = await kept_topic(own_broker)
    unit = PositionUnit(kept.group, kept.at(0), Position(1))
    await _grant(own_broker, _TOPIC, kept.topic)
    name = f"sluicegate:{kept.group}:{kept.source_topic}:0"
    options: Any = {"request_timeout": 0.5, **login()}
    async with kept.sink(own_broker.logins, **options) as sink:
        with pytest.raises(RefusedError, match="WRITE and DESCRIBE on the transactional id"):
            await sink.claim_positions(kept.group, [kept.at(0)])
        await _grant(own_broker, _TRANSACTIONAL, name)
        with pytest.raises(RefusedError, match=f"READ on the group '{kept.group}'"):
            await sink.claim_positions(kept.group, [kept.at(0)])
        await _grant(own_broker, _GROUP, kept.group)
        with pytest.raises(RefusedError, match="READ on the source's topic"):
            await sink.claim_positions(kept.group, [kept.at(0)])
        await _grant(own_broker, _TOPIC, kept.source_topic)
        await sink.claim_positions(kept.group, [kept.at(0)])
        async with transaction(sink, unit) as tx:
            await send(tx, RowBatch([{"part": 0, "at": 0, "key": "a"}]))
    assert await kept.stored() == {0: Position(1)}
