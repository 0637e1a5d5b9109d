"""Invalid arguments, addresses, logins and permissions: each error names the cause and shows no
secret.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import trustme
from tests.kafka.access_help import kafka_args
from tests.kafka.sink.sink_help import Written, items
from tests.kafka.source.kafka_help import delete_topic, new_name, new_topic
from tests.kafka.source.own_help import PASSWORD, OwnKafka, grant, login, revoke
from tests.kafka.source.storm_help import log_lines, run

from sluicegate import (
    Batcher,
    ConfigError,
    DeadLetter,
    Limits,
    RefusedError,
    Retry,
    UnavailableError,
    stack,
)
from sluicegate.batcher import LoopClock
from sluicegate.errors import NotPicklableError, TooLargeError
from sluicegate.kafka import KafkaAccess, KafkaSink
from sluicegate.sinks import MemorySink
from sluicegate.testing.servers.program import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sluicegate.testing import EmbeddedKafka

NOWHERE = "127.0.0.1:9"
BAD: list[tuple[str, dict[str, Any]]] = [
    ("topic='a b': must be a topic name", {"topic": "a b"}),
    ("topic='..': must be a topic name", {"topic": ".."}),
    ("topic=7: must be a topic name", {"topic": 7}),
    ("bootstrap='kafka': must be \"host:port\"", {"bootstrap": "kafka"}),
    ("bootstrap=", {"bootstrap": []}),
    ("key=7", {"key": 7}),
    ("value=7: must be a field's name or a function of an item", {"value": 7}),
    ("headers=7: must be a field's name or a function of an item", {"headers": 7}),
    ("timestamp=7: must be a field's name or a function of an item", {"timestamp": 7}),
    ("partition=0: must be a field's name or a function of an item", {"partition": 0}),
    ("compression='rar'", {"compression": "rar"}),
    ("max_batch_bytes=0", {"max_batch_bytes": 0}),
    ("request_timeout=0", {"request_timeout": 0}),
    ("close_timeout=-1", {"close_timeout": -1}),
    ("is set by Sluicegate: every record is acknowledged", {"acks": 1}),
    ("is set by Sluicegate: use request_timeout=", {"request_timeout_ms": 1}),
    ("is set by Sluicegate: .*max_delay", {"linger_ms": 1}),
    ("is set by Sluicegate: every producer is idempotent", {"enable_idempotence": True}),
    ("is set by Sluicegate: flow.transaction", {"transactional_id": "x"}),
    ("client={'no_such': ...}: is not an option of KafkaSink", {"no_such": "secret"}),
]


@pytest.mark.parametrize(("message", "given"), BAD, ids=[str(given) for _, given in BAD])
def test_a_bad_argument_is_named(message: str, given: dict[str, Any]) -> None:
    """At construction, without a connection."""
    arguments: dict[str, Any] = {"topic": "t", "bootstrap": NOWHERE, **given}
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")) as caught:
        KafkaSink(**kafka_args(KafkaSink, arguments.pop("bootstrap"), **arguments))
    assert "secret" not in str(caught.value)


def test_no_repr_shows_a_secret_and_a_pickle_is_the_same_sink() -> None:
    """Functions and login are pickled; an `ssl_context` requires a function."""
    sink = KafkaSink(lambda item: item["t"], bootstrap=KafkaAccess(NOWHERE, **login()))
    assert PASSWORD not in repr(sink) + str(vars(sink))
    again = cloudpickle.loads(cloudpickle.dumps(sink))
    assert repr(again) == repr(sink)
    assert vars(again)["_options"] == vars(sink)["_options"]
    context = ssl.create_default_context()
    made = KafkaSink(
        "t", bootstrap=KafkaAccess(NOWHERE, security_protocol="SSL", ssl_context=context)
    )
    with pytest.raises(NotPicklableError, match=r"KafkaAccess: .*function"):
        cloudpickle.dumps(made)
    cloudpickle.dumps(
        KafkaSink(
            "t",
            bootstrap=KafkaAccess(
                NOWHERE, security_protocol="SSL", ssl_context=lambda: ssl.create_default_context()
            ),
        )
    )


async def test_an_open_sink_belongs_to_its_loop(
    broker: EmbeddedKafka, real_clock: LoopClock
) -> None:
    """A second loop is refused, and so is a sink that is not open."""
    topic = await new_topic(broker)
    sink = KafkaSink(topic, bootstrap=broker.bootstrap)
    assert "is not open" in str((await Written([1]).write(sink))[0])
    async with sink:

        async def other() -> None:
            async with sink:
                pass

        with pytest.raises(ConfigError, match="another running event loop"):
            await asyncio.to_thread(asyncio.run, other())
        shipped = cloudpickle.loads(cloudpickle.dumps(sink))
        async with shipped:
            assert await Written([1]).write(shipped) == {}
    assert "is not open" in str((await Written([1]).write(sink))[0])


# -- addresses -------------------------------------------------------------------------------------


@asynccontextmanager
async def other_server(
    answer: bytes, *, hangs: bool, context: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """The address of a server that is not a broker: it sends this response to every request."""
    clients: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients.add(writer)
        await reader.read(100)
        writer.write(answer)
        if not hangs:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        for each in clients:
            each.close()
        server.close()


SERVERS: dict[str, tuple[bytes, bool]] = {
    "a web server": (b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
    "a web server that keeps alive": (b"HTTP/1.1 400 Bad Request\r\n\r\n", True),
    "PostgreSQL": (b"E\0\0\0\x20SFATAL\0C0A000\0Munsupported\0\0", False),
    "a silent one": (b"", True),
}


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_that_is_no_broker_is_told_in_time(kind: str) -> None:
    """The error contains its address and comes within the request timeout."""

    async def scenario() -> None:
        answer, hangs = SERVERS[kind]
        async with other_server(answer, hangs=hangs) as address:
            await opening_fails(address, f"no Kafka broker answers at {address}")

    run(scenario())


async def opening_fails(address: str, message: str, **options: Any) -> None:
    began = LoopClock().now()
    with pytest.raises(UnavailableError, match=message):
        async with KafkaSink("t", bootstrap=KafkaAccess(address, request_timeout=0.5), **options):
            pass
    assert LoopClock().now() - began < 20  # on a busy machine; aiokafka's own limit is 40


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_an_address_without_a_server_is_told(host: str) -> None:
    """The error contains its address and comes at once."""
    run(
        opening_fails(
            f"{host}:{free_port()}", "check that the port is right and the broker is running"
        )
    )


def test_a_certificate_that_is_not_trusted_is_told_at_opening(tmp_path: Path) -> None:
    """As a configuration error, whatever the server is."""
    certificate = trustme.CA().issue_cert("127.0.0.1")
    chain, key = str(tmp_path / "chain.pem"), str(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(chain)
    certificate.private_key_pem.write_to_path(key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain, key)

    async def scenario() -> None:
        async with other_server(b"", hangs=False, context=context) as address:
            with pytest.raises(ConfigError, match="refused the login or the certificate"):
                async with KafkaSink(
                    "t",
                    bootstrap=KafkaAccess(
                        address, security_protocol="SSL", ssl_context=ssl.create_default_context
                    ),
                ):
                    pass

    run(scenario())


# -- topics ----------------------------------------------------------------------------------------


def test_a_fixed_topic_that_is_missing_is_told_at_opening(broker: EmbeddedKafka) -> None:
    """With the remedy; nothing stays open."""

    async def scenario() -> None:
        topic = new_name("missing")
        sink = KafkaSink(topic, bootstrap=broker.bootstrap)
        with pytest.raises(ConfigError, match=f"{topic}.*create it"):
            async with sink:
                pass
        assert not sink.is_open
        await new_topic(broker, name=topic)
        async with sink:
            assert await Written([1]).write(sink) == {}

    run(scenario())


def test_a_topic_that_is_deleted_and_made_anew_under_an_open_sink(broker: EmbeddedKafka) -> None:
    """It is refused as a whole meanwhile, as in an outage, and delivered afterwards."""

    async def scenario() -> None:
        topic = await new_topic(broker)
        async with KafkaSink(topic, bootstrap=broker.bootstrap) as sink:
            assert await Written(range(5)).write(sink) == {}
            await delete_topic(broker, topic)
            written = Written([5, 6])
            for _ in range(2):
                errors = await written.write(sink)
                assert isinstance(errors[0], RefusedError), errors
                assert not errors[0].of_item
                assert errors[0] is errors[1]
                assert "create" in errors[0].repair
            await new_topic(broker, name=topic)
            assert await written.write(sink) == {}
            assert await Written([7]).write(sink) == {}
        assert await items(broker, topic) == [5, 6, 7]

    run(scenario())


def test_batches_and_records_that_are_too_large_for_the_topic(broker: EmbeddedKafka) -> None:
    """A batch is halved until its records fit; a record that does not fit fails alone."""

    async def scenario() -> None:
        topic = await new_topic(broker, settings={"max.message.bytes": "2000"})
        given = ["x" * 300 if number != 13 else "y" * 3000 for number in range(30)]
        written = Written(given)
        async with KafkaSink(topic, bootstrap=broker.bootstrap) as sink:
            errors = await written.write(sink)
        assert {index: type(error) for index, error in errors.items()} == {13: TooLargeError}
        assert "max.message.bytes" in str(errors[13])
        assert await items(broker, topic) == [each for each in given if each[0] == "x"]

    run(scenario())


# -- rights ----------------------------------------------------------------------------------------


def test_a_wrong_password_is_told_at_opening_and_never_shown(
    own_broker: OwnKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """The same for a user without permission on the topic."""
    secret = "Wrong-5678-secret"
    caplog.set_level("INFO")

    async def scenario() -> None:
        topic, other = await new_topic(own_broker), await new_topic(own_broker)
        with pytest.raises(ConfigError, match="refused the login") as caught:
            async with KafkaSink(topic, bootstrap=KafkaAccess(own_broker.logins, **login(secret))):
                pass
        assert secret not in str(caught.value) + str(caught.value.__cause__)
        with pytest.raises(ConfigError, match="grant its user WRITE "):
            async with KafkaSink(topic, bootstrap=KafkaAccess(own_broker.logins, **login())):
                pass
        await grant(own_broker, topic=other, to="write")
        with pytest.raises(ConfigError, match=f"authorize the topic '{topic}'.*grant its user"):
            async with KafkaSink(topic, bootstrap=KafkaAccess(own_broker.logins, **login())):
                pass

    run(scenario())
    assert secret not in caplog.text


def test_a_right_that_is_taken_away_for_a_while_is_an_outage(own_broker: OwnKafka) -> None:
    """It is logged with the remedy; nothing becomes a dead letter, and everything is delivered."""

    async def scenario() -> None:
        topic, letters = await new_topic(own_broker), MemorySink[int]()
        await grant(own_broker, topic=topic, to="write")
        sink = KafkaSink(topic, bootstrap=KafkaAccess(own_broker.logins, **login()))
        full = stack(sink, Retry(), DeadLetter(letters))
        batcher = Batcher(full, limits=Limits(max_items=5, max_delay=0.01, max_pending_items=20))
        async with log_lines() as log, batcher:

            async def feed() -> int:
                number = 0
                while not refused.done():
                    await batcher.add(number)
                    number += 1
                return number

            refused = asyncio.ensure_future(log.wait("grant its user WRITE", level=40))
            feeding = asyncio.ensure_future(feed())
            await revoke(own_broker, topic=topic, to="write")
            await refused
            await grant(own_broker, topic=topic, to="write")
            added = await feeding
        assert batcher.report is not None
        assert batcher.report.tally.delivered == added
        assert await items(own_broker, topic) == [*range(added)]
        assert not letters.items

    run(scenario())
