"""How long a message stays delivered, and how its delivery ends, according to a real server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy
from tests.nats.jetstream.local_help import advisories, running
from tests.nats.jetstream.streams_help import Stream, new_stream, until

from sluicegate import Nak, RetryPolicy, Terminate, ToDeadLetter
from sluicegate.consumer import InFlight, Poison
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import EmbeddedNats

pytestmark = pytest.mark.usefixtures("real_clock")

LONG = 3.0
"""Three times the acknowledgement wait."""


def at_first_later(message: Message) -> Nak | None:
    """Fail once, with a long backoff."""
    return Nak(LONG) if message.attempt == 1 else None


async def test_what_is_held_for_three_waits_is_delivered_once(embedded_nats: EmbeddedNats) -> None:
    """consumer/O7, O-T17, consumer/C:C7: running, queued behind a running one, backing off, and
    blocked.
    """
    async with new_stream(embedded_nats) as stream:
        slow = await stream.publish("slow", f"sleep {LONG}", "", "")
        later = await stream.publish("later", "later", "")
        blocked = await stream.publish("blocked", "never", "")
        options = {"poison": "block", "retry": RetryPolicy(attempts=3)}
        async with running(embedded_nats, stream.name, options=options) as here:
            here.answers = {b"later": at_first_later, b"never": lambda _: Terminate("no use")}
            await here.handled(*slow, *later)
            await stream.until_unsettled(len(blocked))
            (told,) = await stream.consumers()
            assert told.delivered is not None
            assert told.num_ack_pending == len(blocked)
            count = len(slow + later + blocked)
            assert (told.delivered.consumer_seq, told.num_redelivered) == (count, 0)
        attempts = [(each, 1) for each in sorted(slow + later + blocked[:1])]
        assert sorted(here.began) == sorted([*attempts, (later[0], 2)])


async def test_what_is_given_up_is_terminated_and_the_rest_is_acknowledged(
    embedded_nats: EmbeddedNats,
) -> None:
    """consumer/O34, consumer/C:C7: each once, including dead letters. A work queue is empty
    afterwards.
    """
    letters: MemorySink[Any] = MemorySink()
    async with (
        new_stream(embedded_nats, retention=RetentionPolicy.WORK_QUEUE) as stream,
        advisories(stream, "MSG_TERMINATED") as told,
    ):
        await stream.publish("a", "", "dead", "", "")
        await stream.publish("b", "term", "", "dead")
        options = {"poison": Poison("skip", dead_letters=letters), "retry": RetryPolicy(attempts=2)}
        async with running(embedded_nats, stream.name, options=options) as here:
            here.answers = {
                b"term": lambda _: Terminate("no use"),
                b"dead": lambda _: ToDeadLetter("bad"),
            }
            await stream.until_unsettled(0)
        terminated = [json.loads(await told.get())["stream_seq"] for _ in range(3)]
        await stream.client.flush()
        assert told.empty()
        assert sorted(terminated) == [2, 5, 7]
        assert sorted(here.ended) == [1, 3, 4, 6]
        assert (await stream.info()).state.messages == 0
        assert len(letters.items) == 3


async def made_here(stream: Stream, **config: Any) -> None:
    """A consumer created by the test, without a priority group."""
    given: dict[str, Any] = {
        "durable_name": "d",
        "ack_policy": AckPolicy.EXPLICIT,
        "ack_wait": 1.0,
        **config,
    }
    await stream.js.add_consumer(stream.name, ConsumerConfig(**given))


async def test_a_message_whose_deliveries_are_used_up_is_an_error_with_its_number(
    embedded_nats: EmbeddedNats, caplog: pytest.LogCaptureFixture
) -> None:
    """consumer/C:C7: of a bound consumer; the messages behind it are handled."""
    async with new_stream(embedded_nats) as stream, advisories(stream, "MAX_DELIVERIES") as told:
        await made_here(stream, max_deliver=2, max_ack_pending=100)
        (deadly,) = await stream.publish("a", "")
        for _ in range(2):
            subscription = await stream.js.pull_subscribe_bind("d", stream.name)
            (message,) = await subscription.fetch(1, timeout=30)
            assert message.metadata.sequence.stream == deadly
            await subscription.unsubscribe()
        behind = await stream.publish("a", "", "") + await stream.publish("b", "")
        async with running(embedded_nats, stream.name) as here:
            assert json.loads(await told.get())["stream_seq"] == deadly
            await here.handled(*behind)

            async def is_told() -> bool:
                return f"message {deadly} after 2 deliveries" in caplog.text

            await until(is_told)
            assert "ERROR" in caplog.text
        assert deadly not in here.ended


async def test_a_bound_consumer_with_a_shorter_wait_is_extended_in_time(
    embedded_nats: EmbeddedNats,
) -> None:
    """O-T17: the consumer's own wait applies, not that of the source."""
    async with new_stream(embedded_nats) as stream:
        await made_here(stream, ack_wait=1.5)
        sent = await stream.publish("a", "sleep 2", "")
        async with running(embedded_nats, stream.name, ack_wait=30.0) as here:
            await here.handled(*sent)
            await stream.until_unsettled(0)
            (told,) = await stream.consumers()
        assert told.delivered is not None
        assert (told.delivered.consumer_seq, told.num_redelivered) == (2, 0)


async def test_a_second_reader_of_a_consumer_that_pins_none_is_told(
    embedded_nats: EmbeddedNats,
) -> None:
    """consumer/C:C7: order per key is lost, and the second reader reports it."""
    async with new_stream(embedded_nats) as stream:
        await made_here(stream)
        async with running(embedded_nats, stream.name) as first:
            await first.handled(*await stream.publish("a", ""))
            async with running(embedded_nats, stream.name) as second:
                told = await second.trouble("the order per key is lost")
                assert "use one process" in told


async def test_payloads_of_more_than_one_request_arrive(own: EmbeddedNats) -> None:
    """consumer/C:C7: a request is limited in bytes, and a larger message arrives alone."""
    own.stop()
    own.configure("max_payload: 24MB\n")
    own.start()
    async with new_stream(own) as stream:
        small, large = "x" * (1 << 20), "x" * (20 << 20)
        sent = [(await stream.publish("a", each))[0] for each in (small, large, small, large)]
        options = {"in_flight": InFlight(bytes=64 << 20)}
        async with running(own, stream.name, options=options, ack_wait=5.0) as here:
            await here.handled(*sent)
            assert here.ended == sent
            await stream.until_unsettled(0)
