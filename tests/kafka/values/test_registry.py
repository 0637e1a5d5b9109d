"""The registry down, slow or wrong: records wait, and only those that it does not know are poison.
White box: the clock and the contents of what it remembers, and the replay of one record.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from tests.kafka.source.storm_help import run
from tests.kafka.values.scripted_registry import ScriptedRegistry, scripted_registry
from tests.kafka.values.test_avro import ITEM, framed

from sluicegate import (
    Batcher,
    Consumer,
    Message,
    PermanentError,
    RefusedError,
    ThrottledError,
    UnavailableError,
    flow,
)
from sluicegate.batcher import LoopClock
from sluicegate.consumer import (
    MemoryLog,
    MemorySource,
    Poison,
    Record,
    decode,
    with_steps,
)
from sluicegate.consumer.jobs import EventContext
from sluicegate.consumer.lanes.message import handle_again
from sluicegate.http import HttpAccess
from sluicegate.kafka import Avro, SchemaRegistry
from sluicegate.postgres import PostgresEffects
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.testing import EmbeddedPostgres

SEVEN = framed(ITEM, {"n": 7})


async def failure(there: ScriptedRegistry, answer: tuple[int, Any], **options: Any) -> Exception:
    """The error of decoding, if the registry answers this."""
    there.answers["/schemas/ids/1"] = answer
    registry = SchemaRegistry(there.url, **options)
    with pytest.raises(Exception) as raised:
        await registry.call(Avro(registry).decode, SEVEN)
    return raised.value


@pytest.mark.parametrize(
    ("answer", "kind", "told"),
    [
        ((404, {"error_code": 40403}), PermanentError, "does not know"),
        ((200, {"schema": "{"}), PermanentError, "cannot be read"),
        ((200, {"schema": "{}", "schemaType": "JSON"}), PermanentError, "is JSON, not AVRO"),
        ((404, b"<html>"), RefusedError, "to repair: correct the path"),
        ((401, {}), RefusedError, "to repair: give credentials"),
        ((403, {}), RefusedError, "to repair: grant"),
        ((302, b""), RefusedError, "to repair: give the URL"),
        ((400, {}), RefusedError, "to repair"),
        ((200, b"<html>"), RefusedError, "to repair: correct the URL"),
        ((200, [1]), RefusedError, "to repair: correct the URL"),
        ((200, {"schema": 7}), UnavailableError, "no 'schema'"),
        ((200, b"x" * (17 << 20)), UnavailableError, "no answer"),
        ((429, {}), ThrottledError, "429"),
        ((500, {"error_code": 50001}), UnavailableError, "HTTP 500"),
        ((503, b""), UnavailableError, "HTTP 503"),
    ],
    ids=str,
)
def test_only_an_unknown_or_useless_schema_is_poison(
    answer: tuple[int, Any], kind: type[Exception], told: str
) -> None:
    async def scenario() -> Exception:
        async with scripted_registry() as there:
            return await failure(there, answer)

    error = run(scenario())
    assert type(error) is kind
    assert told in str(error)


def test_waiting_is_bounded_and_a_refused_connection_is_an_outage() -> None:
    async def scenario() -> None:
        async with scripted_registry() as there:
            there.open.clear()
            error = await failure(there, (200, {}), timeout=0.2)
            assert type(error) is UnavailableError
            assert "within 0.2 s" in str(error)
        assert type(await failure(there, (200, {}))) is UnavailableError

    run(scenario())


def test_one_request_runs_for_all_who_wait_and_survives_the_cancellation_of_one() -> None:
    async def scenario() -> None:
        async with scripted_registry() as there:
            there.has(1, ITEM)
            registry = SchemaRegistry(there.url)
            avro = Avro(registry)
            there.open.clear()
            first, *others = [
                asyncio.ensure_future(registry.call(avro.decode, SEVEN)) for _ in range(20)
            ]
            await there.asked.wait()
            assert len(there.requests) == 1
            first.cancel()
            there.open.set()
            assert await asyncio.gather(*others) == 19 * [{"n": 7}]
            assert len(there.requests) == 2
            there.answers.clear()
            assert avro.decode(SEVEN) == {"n": 7}

    run(scenario())


def test_an_error_is_told_to_all_who_wait_and_then_asked_again() -> None:
    async def scenario() -> None:
        async with scripted_registry() as there:
            there.answers["/schemas/ids/1"] = 500, {}
            registry = SchemaRegistry(there.url)
            calls = [registry.call(Avro(registry).decode, SEVEN) for _ in range(5)]
            errors = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(error) for error in errors] == 5 * [UnavailableError]
            assert len({id(error) for error in errors}) == 5
            assert len(there.requests) == 1
            there.has(1, ITEM)
            assert await registry.call(Avro(registry).decode, SEVEN) == {"n": 7}

    run(scenario())


def test_the_latest_version_is_asked_for_again_after_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unknown id is remembered as well, for a few seconds."""
    now = 1000.0
    monkeypatch.setattr(LoopClock, "wall_time", lambda clock: now)

    async def scenario() -> None:
        nonlocal now
        async with scripted_registry() as there:
            latest = "/subjects/t-value/versions/latest"
            for number in (1, 2):
                there.has(number, ITEM)
            registry = SchemaRegistry(there.url, latest_for=60.0)
            encode, decode = Avro(registry).encoder("t"), Avro(registry).decode
            for after, schema_id, expected in [(0, 1, 1), (59, 2, 1), (2, 2, 2)]:
                now += after
                there.answers[latest] = 200, {"id": schema_id}
                assert await registry.call(encode, {"n": 7}) == framed(ITEM, {"n": 7}, expected)
            for after, requests in [(0, 1), (4, 1), (2, 2)]:
                now += after
                with pytest.raises(PermanentError):
                    await registry.call(decode, framed(ITEM, {"n": 7}, 99))
                assert there.requests.count("GET /schemas/ids/99") == requests

    run(scenario())


@pytest.mark.parametrize(
    ("answer", "registers", "repair"),
    [
        ((404, {"error_code": 40401}), False, "register it, pass auto_register=True"),
        ((404, {"error_code": 40403}), False, "register it, pass auto_register=True"),
        ((409, {"error_code": 409, "message": "n was removed"}), True, "change the schema"),
        ((422, {"error_code": 42201, "message": "bad"}), True, "change the schema"),
    ],
)
def test_a_schema_that_cannot_be_used_is_a_refusal(
    answer: tuple[int, Any], registers: bool, repair: str
) -> None:
    async def scenario() -> None:
        async with scripted_registry() as there:
            path = "/subjects/t-value/versions" if registers else "/subjects/t-value"
            there.answers[path] = answer
            registry = SchemaRegistry(there.url)
            encode = Avro(registry, ITEM, auto_register=registers).encoder("t")
            with pytest.raises(RefusedError) as refused:
                await registry.call(encode, {"n": 7})
            assert repair in refused.value.repair
            assert str(answer[1].get("message", "")) in str(refused.value)
            with pytest.raises(RefusedError) as refused:
                await registry.call(Avro(registry).encoder("other"), {"n": 7})
            assert "register a schema for the subject 'other-value'" in refused.value.repair

    run(scenario())


def test_a_schema_that_another_process_registers_meanwhile_is_used() -> None:
    """The registry refuses the slower one of both, for example as a subject that exists already."""

    async def scenario() -> None:
        async with scripted_registry() as there:
            there.answers["/subjects/t-value/versions"] = 409, {"error_code": 409}
            there.answers["/subjects/t-value"] = 200, {"id": 5}
            registry = SchemaRegistry(there.url)
            encode = Avro(registry, ITEM, auto_register=True).encoder("t")
            assert await registry.call(encode, {"n": 7}) == framed(ITEM, {"n": 7}, 5)

    run(scenario())


def test_logins_and_certificates_are_those_of_http() -> None:
    """Basic, bearer and mutual TLS; no error shows them."""

    async def scenario() -> None:
        authority = trustme.CA()
        import ssl

        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = ssl.CERT_REQUIRED
        authority.issue_cert("localhost").configure_cert(context)
        authority.configure_trust(context)
        own = ssl.create_default_context()
        authority.configure_trust(own)
        authority.issue_cert("client@example.org").configure_cert(own)
        async with scripted_registry(context) as there:
            there.has(1, ITEM)
            logins: list[tuple[Any, str]] = [(("ann", "secret"), "Basic YW5uOnNlY3JldA=="), ("Bearer s3", "Bearer s3")]  # fmt: skip
            for auth, sent in logins:
                registry = SchemaRegistry(HttpAccess(there.url, auth=auth, ssl_context=own))
                assert await registry.call(Avro(registry).decode, SEVEN) == {"n": 7}
                assert f"authorization: {sent}" in there.headers[-1]
            there.answers["/schemas/ids/1"] = 422, {"error_code": 42201, "message": "s3 Bearer s3"}
            registry = SchemaRegistry(HttpAccess(there.url, auth="Bearer s3", ssl_context=own))
            with pytest.raises(PermanentError) as refused:
                await registry.call(Avro(registry).decode, SEVEN)
            assert "s3" not in repr(refused.value.__cause__)

    run(scenario())


# -- in consumers and pipes ------------------------------------------------------------------------


def by_consumer(log: MemoryLog, avro: Avro, done: list[Any], letters: list[Any]) -> Any:
    async def handle(message: Message) -> None:
        done.append(message.value)

    async def keep(batch: Any) -> None:
        letters.extend(batch)

    poison = Poison("skip", dead_letters=keep)
    consumer = Consumer(MemorySource(log, ends=True), steps=[decode(avro.decode)], poison=poison)
    return consumer.run(handle)


def by_batches(log: MemoryLog, avro: Avro, done: list[Any], letters: list[Any]) -> Any:
    async def handle(messages: list[Message]) -> None:
        done.extend(message.value for message in messages)

    async def keep(batch: Any) -> None:
        letters.extend(batch)

    poison = Poison("skip", dead_letters=keep)
    consumer = Consumer(MemorySource(log, ends=True), steps=[decode(avro.decode)], poison=poison)
    return consumer.run_batch(handle, size=10, max_wait=0.05)


def by_pipe(log: MemoryLog, avro: Avro, done: list[Any], letters: list[Any]) -> Any:
    async def keep(batch: Any) -> None:
        letters.extend(batch)

    async def write(batch: Any) -> None:
        done.extend(batch)

    poison = Poison("skip", dead_letters=keep)
    source = MemorySource(log, ends=True)
    return flow.pipe(source, Batcher(write), lambda m: avro.value(m), poison=poison).run()


def by_async_pipe(log: MemoryLog, avro: Avro, done: list[Any], letters: list[Any]) -> Any:
    async def keep(batch: Any) -> None:
        letters.extend(batch)

    async def write(batch: Any) -> None:
        done.extend(batch)

    async def row(message: Message) -> Any:
        return avro.value(message)

    poison = Poison("skip", dead_letters=keep)
    return flow.pipe(MemorySource(log, ends=True), Batcher(write), row, poison=poison).run()


def by_handler(log: MemoryLog, avro: Avro, done: list[Any], letters: list[Any]) -> Any:
    """Without a step."""

    async def handle(message: Message) -> None:
        done.append(avro.value(message))

    return _consumer(log, letters).run(handle)


def by_thread(log: MemoryLog, avro: Avro, done: list[Any], letters: list[Any]) -> Any:
    def handle(message: Message) -> None:
        done.append(avro.decode(message.value))

    return _consumer(log, letters).run(handle)


def by_batch_handler(log: MemoryLog, avro: Avro, done: list[Any], letters: list[Any]) -> Any:
    async def handle(messages: list[Message]) -> None:
        done.extend([avro.value(message) for message in messages])

    return _consumer(log, letters).run_batch(handle, size=10, max_wait=0.05)


def by_events(log: MemoryLog, avro: Avro, done: list[Any], letters: list[Any]) -> Any:
    async def handle(context: EventContext) -> None:
        done.append(avro.value(context.message))

    return _consumer(log, letters).run_events(handle)


def _consumer(log: MemoryLog, letters: list[Any]) -> Consumer:
    async def keep(batch: Any) -> None:
        letters.extend(batch)

    source = MemorySource(log, ends=True)
    return Consumer(source, ordering="key", poison=Poison("skip", dead_letters=keep))


WAYS = [by_consumer, by_batches, by_pipe, by_async_pipe, by_handler, by_thread, by_batch_handler, by_events]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_good_records_pass_in_order_poison_is_kept_and_an_outage_loses_nothing(
    way: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluicegate.kafka")

    async def scenario() -> None:
        log, done, letters = MemoryLog(), list[Any](), list[Any]()
        for number in range(30):
            schema_id = 1 + number % 3
            data = framed(ITEM, {"n": number}, schema_id)
            log.produce("t", data[:4] + b"\x63" + data[5:] if number == 10 else data, key="k")
        log.produce("t", b"{}", key="k")
        async with scripted_registry() as there:
            for number in (1, 2, 3):
                there.has(number, ITEM)
            there.answers["/schemas/ids/2"] = 401, {}
            running = asyncio.ensure_future(
                way(log, Avro(SchemaRegistry(there.url)), done, letters)
            )
            while not any("GET /schemas/ids/2" in each for each in there.requests):
                there.asked.clear()
                await there.asked.wait()
            assert all(value["n"] < 1 for value in done)
            there.has(2, ITEM)
            await running
        assert [value["n"] for value in done] == [number for number in range(30) if number != 10]
        assert len(letters) == 2

    run(scenario())
    logged = [record.getMessage() for record in caplog.records]
    told = [message for message in logged if message.startswith("SchemaRegistry")]
    assert len(told) == 2
    assert "to repair: give credentials" in told[0]
    assert "responds again" in told[1]


def test_a_dead_letter_is_replayed_with_its_own_steps() -> None:
    async def scenario() -> None:
        async with scripted_registry() as there:
            there.has(1, ITEM)
            registry, seen, log = SchemaRegistry(there.url), list[Any](), MemoryLog()
            log.produce("t", SEVEN)

            async def handle(message: Message) -> None:
                seen.append(message.value)

            handler = with_steps(handle, Avro(registry).step)
            await Consumer(MemorySource(log, ends=True)).run(handler)
            assert seen == [{"n": 7}]

    run(scenario())


def test_a_letter_is_handled_again_by_a_handler_that_decodes() -> None:
    async def scenario() -> None:
        async with scripted_registry() as there:
            there.has(1, ITEM)
            avro, seen = Avro(SchemaRegistry(there.url)), list[Any]()

            async def handle(message: Message) -> None:
                seen.append(avro.value(message))

            await handle_again(handle, Record("t", 0, 0, value=SEVEN))
            assert seen == [{"n": 7}]

    run(scenario())


def test_a_handler_in_a_transaction_decodes(embedded_postgres: EmbeddedPostgres) -> None:
    async def scenario() -> None:
        async with scripted_registry() as there:
            there.has(1, ITEM)
            avro, seen, log = Avro(SchemaRegistry(there.url)), list[Any](), MemoryLog()
            log.produce("t", SEVEN)

            async def handle(message: Message) -> None:
                seen.append(avro.value(message))

            effects = PostgresEffects(embedded_postgres.dsn)
            await flow.transaction(
                MemorySource(log, ends=True), effects, handle, name="decodes"
            ).run()
            assert seen == [{"n": 7}]

    run(scenario())


def test_without_a_loop_a_codec_waits_for_the_registry() -> None:
    """In a thread or a script. An outage is not poison."""

    async def scenario() -> None:
        async with scripted_registry() as there:
            avro = Avro(SchemaRegistry(there.url))
            there.answers["/schemas/ids/1"] = 503, {}
            with pytest.raises(UnavailableError, match="503"):
                await asyncio.to_thread(avro.decode, SEVEN)
            there.has(1, ITEM)
            assert await asyncio.to_thread(avro.decode, SEVEN) == {"n": 7}
            with pytest.raises(PermanentError, match="does not know"):
                await asyncio.to_thread(avro.decode, framed(ITEM, {"n": 7}, 99))
            there.answers["/subjects/t-value"] = 200, {"id": 5}
            encode = Avro(SchemaRegistry(there.url), ITEM).encoder("t")
            assert await asyncio.to_thread(encode, {"n": 7}) == framed(ITEM, {"n": 7}, 5)

    run(scenario())


def test_unknown_ids_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by their number, nor by tracebacks, which would keep the responses alive."""
    monkeypatch.setattr("sluicegate.kafka.values.registry._UNKNOWN_MOST", 10)

    async def scenario() -> None:
        async with scripted_registry() as there:
            registry = SchemaRegistry(there.url)
            decode = Avro(registry).decode
            for number in range(15):
                with pytest.raises(PermanentError):
                    await registry.call(decode, framed(ITEM, {"n": 7}, number))
            kept = registry.client._unknown
            assert len(kept) == 10
            assert {each.value.__traceback__ for each in kept.values()} == {None}

    run(scenario())


def test_rows_of_the_memory_sink_are_the_decoded_values() -> None:
    """A method of the codec is a transform as it is."""

    async def scenario() -> None:
        async with scripted_registry() as there:
            there.has(1, ITEM)
            log, rows = MemoryLog(), MemorySink[Any]()
            log.produce("t", SEVEN)
            transform = Avro(SchemaRegistry(there.url)).value
            await flow.pipe(MemorySource(log, ends=True), Batcher(rows), transform).run()
            assert rows.items == [{"n": 7}]

    run(scenario())
