"""Refusals by the server: reported with the repair, and without waiting for acknowledgements that
never arrive.

White box: the channel of the sink.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from nats.js.api import DiscardPolicy
from tests.nats.sink.nats_help import Written, context_of, count, new_stream, plain, read

from sluicegate import (
    Batcher,
    ConfigError,
    PermanentError,
    RefusedError,
    Retry,
    RowBatch,
    ThrottledError,
    UnavailableError,
    UnknownOutcomeError,
    send,
    stack,
)
from sluicegate.errors import TimedOutError
from sluicegate.nats import NatsSink
from sluicegate.testing import embedded_nats as start_nats
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedNats

USERS = """
authorization {
  users = [
    { user: admin, password: secret }
    { user: app, password: secret, permissions: { publish: [PUBLISH], subscribe: "SUBSCRIBE" } }
  ]
}
"""
ADMIN = {"user": "admin", "password": "secret"}
APP = {"user": "app", "password": "secret"}


def users(*publish: str, subscribe: str = "_INBOX.>") -> str:
    allowed = ", ".join(f'"{each}"' for each in publish)
    return USERS.replace("PUBLISH", allowed).replace("SUBSCRIBE", subscribe)


def sink(server: EmbeddedNats, subject: Any, **given: Any) -> NatsSink:
    options: dict[str, Any] = {"ack_timeout": 10.0, **given}
    return NatsSink(subject, servers=server.url, **options)


async def refused(made: NatsSink, *items: Any) -> BaseException:
    """The single error of all items."""
    async with made:
        errors = await send(made, RowBatch(items or [{"n": 1}, {"n": 2}]))
    (error,) = {id(each): each for each in errors.values()}.values()
    assert len(errors) == len(items or (1, 2))
    return error


async def test_a_subject_without_a_stream_is_refused_with_its_repair(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    error = await refused(sink(embedded_nats, "nowhere.a"))
    assert type(error) is RefusedError
    assert error.repair.startswith("create a stream with the subject 'nowhere.a', or enable")
    assert not error.of_item


async def test_a_denial_that_belongs_to_no_message_is_logged(
    real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    with there_or_skip("nats", start_nats(users("*.a"))) as server:
        stream = await new_stream(server, login=ADMIN)
        made = sink(server, f"{stream}.a", **APP)
        async with made:
            assert made._channel is not None
            client = await made._channel.ready()
            await client.publish("else", b"")
            assert await send(made, RowBatch([b"1"])) == {}
    assert [each.getMessage() for each in caplog.records] == [
        f"{made!r}: {server.url} does not allow the sink to publish to 'else'; allow the user to publish "
        "to 'else'"
    ]


async def test_a_server_without_jetstream_is_refused_with_its_repair(
    real_clock: LoopClock,
) -> None:
    with there_or_skip("nats", start_nats(jetstream=False)) as core:
        error = await refused(sink(core, "a.b"))
    assert type(error) is RefusedError
    assert "or enable JetStream in the server's configuration" in str(error)


async def test_one_subject_without_a_stream_is_its_items_refusal(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(embedded_nats)
    made = sink(embedded_nats, lambda item: item["to"])
    items = [{"to": f"{stream}.a"}, {"to": "nowhere.b"}, {"to": f"{stream}.c"}]
    async with made:
        errors = await send(made, RowBatch(items))
    assert list(errors) == [1]
    error = errors[1]
    assert isinstance(error, RefusedError)
    assert error.of_item
    assert error.repair.startswith("create a stream with the subject 'nowhere.b'")
    assert await count(embedded_nats, stream) == 2


async def test_another_stream_than_expected_is_refused(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(embedded_nats)
    error = await refused(sink(embedded_nats, f"{stream}.a", stream="ANOTHER"), {"n": 1})
    assert type(error) is RefusedError
    assert "publish to subjects of the expected stream" in error.repair
    assert await count(embedded_nats, stream) == 0


async def test_a_missing_permission_is_refused_at_once_and_by_its_subject(
    real_clock: LoopClock,
) -> None:
    with there_or_skip("nats", start_nats(users("*.Allowed"))) as server:
        stream = await new_stream(server, login=ADMIN)
        made = sink(server, lambda item: f"{stream}.{item['to']}", **APP)
        items = [{"to": "Allowed"}, {"to": "Denied"}, {"to": "Allowed"}, {"to": "Denied"}]
        async with made:
            errors = await send(made, RowBatch(items))
            assert sorted(errors) == [1, 3]
            for error in errors.values():
                assert isinstance(error, RefusedError)
                assert error.of_item
                assert error.repair == f"allow the user to publish to '{stream}.Denied'"
            server.configure(users(">"))
            assert server.pid is not None
            os.kill(server.pid, signal.SIGHUP)
            batch = RowBatch(items)
            while errors := await send(made, batch):  # until it has read its configuration
                assert all(isinstance(each, RefusedError) for each in errors.values())
        assert not errors


async def test_subjects_that_differ_in_their_case_are_not_told_apart(
    real_clock: LoopClock,
) -> None:
    """nats-py reports the subject of a denial in lower case."""
    with there_or_skip("nats", start_nats(users("*.a"))) as server:
        stream = await new_stream(server, login=ADMIN)
        made = sink(server, lambda item: f"{stream}.{item}", value=lambda _: b"", **APP)
        async with made:
            errors = await send(made, RowBatch(["a", "A"]))
    assert isinstance(errors[1], (UnknownOutcomeError, RefusedError))
    assert all(isinstance(each, UnknownOutcomeError) for i, each in errors.items() if i == 0)


async def test_a_user_who_gets_no_answers_is_refused_when_opening(real_clock: LoopClock) -> None:
    with there_or_skip("nats", start_nats(users(">", subscribe="own.>"))) as server:
        with pytest.raises(RefusedError, match=r"allow the user to subscribe to '_INBOX\.>'"):
            async with sink(server, "a.b", **APP):
                pass
        stream = await new_stream(server, login=ADMIN)
        async with sink(server, f"{stream}.a", inbox_prefix="own.inbox", **APP) as made:
            assert await send(made, RowBatch([{"n": 1}])) == {}


async def test_a_refused_login_is_told_when_opening(real_clock: LoopClock) -> None:
    with there_or_skip("nats", start_nats(users(">"))) as server:
        with pytest.raises(RefusedError, match="has refused the login"):
            async with sink(server, "a.b", user="app", password="other"):
                pass


@pytest.mark.parametrize("limit", [{"max_msgs": 3}, {"max_bytes": 400}])
async def test_a_full_stream_throttles_and_takes_the_rest_when_it_is_emptied(
    embedded_nats: EmbeddedNats, real_clock: LoopClock, limit: dict[str, Any]
) -> None:
    stream = await new_stream(embedded_nats, discard=DiscardPolicy.NEW, **limit)
    written = Written([{"n": number} for number in range(6)])
    async with sink(embedded_nats, f"{stream}.a") as made:
        errors = await written.write(made)
        stored = await count(embedded_nats, stream)
        assert stored == 6 - len(errors) > 0
        assert {type(each) for each in errors.values()} == {ThrottledError}
        assert "is full" in str(errors[5])
        async with plain(embedded_nats) as client:
            await context_of(client).purge_stream(stream)
        assert len(await written.write(made)) < len(errors)


async def test_a_full_subject_is_its_items_error(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(
        embedded_nats,
        discard=DiscardPolicy.NEW,
        max_msgs=100,
        max_msgs_per_subject=1,
        discard_new_per_subject=True,
    )
    made = sink(embedded_nats, lambda item: f"{stream}.{item['of']}")
    async with made:
        errors = await send(made, RowBatch([{"of": "a"}, {"of": "a"}, {"of": "b"}]))
    assert list(errors) == [1]
    assert "no more room for the subject" in str(errors[1])


async def test_a_message_over_the_limit_of_its_stream_is_refused_alone(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(embedded_nats, max_msg_size=200)
    async with sink(embedded_nats, f"{stream}.a") as made:
        errors = await send(made, RowBatch([b"small", bytes(201), b"small too"]))
    assert list(errors) == [1]
    assert type(errors[1]) is PermanentError
    assert await count(embedded_nats, stream) == 2


async def test_a_sealed_stream_is_refused(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(embedded_nats)
    async with plain(embedded_nats) as client:
        config = (await context_of(client).stream_info(stream)).config
        await context_of(client).update_stream(config, sealed=True, deny_delete=True, deny_purge=True)  # fmt: skip
    error = await refused(sink(embedded_nats, f"{stream}.a"), {"n": 1})
    assert isinstance(error, RefusedError)
    assert "sealed" in error.repair


async def test_a_stream_that_never_answers_is_unknown_after_the_timeout(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    stream = await new_stream(embedded_nats, no_ack=True)
    made = sink(embedded_nats, f"{stream}.a", ack_timeout=0.05, max_in_flight=2)
    async with made:
        errors = await send(made, RowBatch([{"n": number} for number in range(4)]))
    assert [type(errors[index]) for index in range(4)] == [
        TimedOutError,
        TimedOutError,
        UnavailableError,
        UnavailableError,
    ]
    assert [each.item["n"] for each in await read(embedded_nats, stream)] == [0, 1]


async def test_another_subscriber_that_answers_is_not_taken_for_a_stream(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    async with plain(embedded_nats) as client:

        async def answer(message: Any) -> None:
            await message.respond(b"thanks")

        await client.subscribe("service.a", cb=answer)
        await client.flush()
        await client.flush()
        error = await refused(sink(embedded_nats, "service.a"), {"n": 1})
    assert type(error) is UnknownOutcomeError
    assert "does another subscriber reply" in str(error)


async def test_a_refusal_is_repaired_while_the_batcher_waits(
    embedded_nats: EmbeddedNats, real_clock: LoopClock
) -> None:
    """No item is lost or given up while the stream is missing."""
    stream = f"LATE{os.getpid()}"
    made = stack(sink(embedded_nats, f"{stream}.a"), Retry(attempts=2))
    async with Batcher(made, name="late") as batcher:
        receipts = [await batcher.submit({"n": number}) for number in range(3)]
        flushing = asyncio.ensure_future(batcher.flush())
        while batcher.stats().destination.state != "refused":
            await real_clock.sleep(0.005)
        async with plain(embedded_nats) as client:
            await context_of(client).add_stream(name=stream, subjects=[f"{stream}.>"])
        await flushing
        for receipt in receipts:
            await receipt
    assert await count(embedded_nats, stream) == 3


def test_an_opening_with_bad_credentials_is_the_callers_mistake(
    embedded_nats: EmbeddedNats,
) -> None:
    async def main() -> None:
        async with sink(embedded_nats, "a.b", nkeys_seed="/no/such/file"):
            pass

    with pytest.raises((ConfigError, UnavailableError)):
        asyncio.run(main())
