"""An address with a password, well-formed or broken in any way, is shown nowhere beyond host and
path: not by a repr, an error and its causes, or a log, at construction, at opening or in a write.

White box: what a string as a sink raises, the commands in this process, and the error of an argument.

The password is made of pieces that occur nowhere else, with characters between them that mean
something in a URL. No piece of it may be shown.

White box: a stream is checked without a connection.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.properties import examples

from sluicegate import ConfigError, RowBatch
from sluicegate._core.checks import bad
from sluicegate._core.stacking import as_sink
from sluicegate.cli import main
from sluicegate.clickhouse import ClickHouseSink
from sluicegate.http import ElasticsearchSink, HttpAccess, HttpSink
from sluicegate.kafka import ConfluentKafkaSource, KafkaSink, KafkaSource
from sluicegate.nats import JetStreamSource, NatsSink
from sluicegate.objects import ObjectSink
from sluicegate.postgres import (
    ParkAdmin,
    PostgresAccess,
    PostgresAdvisoryLocks,
    PostgresEffects,
    PostgresParkStore,
    PostgresQueueSink,
    PostgresQueueSource,
    PostgresSink,
    PostgresState,
    PostgresStreamSink,
    PostgresStreamSource,
    PostgresSubscriptions,
    QueueAdmin,
    QueueMonitor,
    StreamMonitor,
    SubscriptionAdmin,
    check_streams,
)
from sluicegate.redis import RedisSink
from sluicegate.sql import SqlSink

if TYPE_CHECKING:
    from collections.abc import Callable

PIECES = ("kQ7z", "Xw9v", "Vj4p", "zB6q")
NOWHERE = "127.0.0.1:1"
SURFACE = Path(__file__).parents[1] / "surface.txt"

POSTGRES: dict[str, Callable[[str], Any]] = {
    "sink": lambda dsn: PostgresSink(dsn, table="t", columns=("id",)),
    "effects": lambda dsn: PostgresEffects(dsn),
    "queue sink": lambda dsn: PostgresQueueSink(dsn, queue="q"),
    "stream sink": lambda dsn: PostgresStreamSink(dsn, stream="s", type="t"),
    "queue source": lambda dsn: PostgresQueueSource(dsn, queue="q"),
    "stream source": lambda dsn: PostgresStreamSource(dsn, subscription="s"),
    "subscriptions": lambda dsn: PostgresSubscriptions(dsn),
    "locks": lambda dsn: PostgresAdvisoryLocks(dsn),
    "park admin": lambda dsn: ParkAdmin(dsn),
    "park store": lambda dsn: PostgresParkStore(dsn),
    "state": lambda dsn: PostgresState(dsn, table="t"),
    "queue admin": lambda dsn: QueueAdmin(dsn),
    "queue monitor": lambda dsn: QueueMonitor(dsn),
    "subscription admin": lambda dsn: SubscriptionAdmin(dsn),
    "stream monitor": lambda dsn: StreamMonitor(dsn),
    "access": lambda dsn: PostgresAccess(dsn),
    "a string as a sink": lambda dsn: as_sink(cast("Any", dsn)),
}
OTHERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "sql, mysql": ("mysql+pymysql", lambda url: SqlSink(url, table="t", columns=["id"])),
    "clickhouse": ("http", lambda url: ClickHouseSink(url, table="t", columns=("id",))),
    "elasticsearch": ("http", lambda url: ElasticsearchSink(url, index="i")),
    "http": ("http", lambda url: HttpSink(url)),
    "http proxy": (
        "http",
        lambda url: HttpSink(HttpAccess(f"http://{NOWHERE}/", client_options={"proxy": url})),
    ),
    "redis": ("redis", lambda url: RedisSink(url, stream="s")),
    "nats": ("nats", lambda url: NatsSink("s", servers=url, connect_timeout=0.2)),
    "jetstream": (
        "nats",
        lambda url: JetStreamSource("S", durable="d", servers=url, connect_timeout=0.2),
    ),
    "objects": ("s3", lambda url: ObjectSink(url)),
    "kafka": ("kafka", lambda url: KafkaSink("t", bootstrap=url)),
    "kafka source": ("kafka", lambda url: KafkaSource("t", bootstrap=url, group="g")),
    "confluent": ("kafka", lambda url: ConfluentKafkaSource("t", bootstrap=url, group="g")),
}
ALL = {**{name: ("postgresql", make) for name, make in POSTGRES.items()}, **OTHERS}

BETWEEN = st.text("@/?#:%[] \\é☃=+'\",;\n", min_size=1, max_size=3)
SECRETS = st.builds(
    lambda first, second, third: (
        PIECES[0] + first + PIECES[1] + second + PIECES[2] + third + PIECES[3]
    ),
    BETWEEN,
    BETWEEN,
    BETWEEN,
)
FORMS = (
    "{scheme}://app:{secret}@{host}/db",
    "{scheme}://:{secret}@{host}",
    "{scheme}://app:1{secret}@{host}/db?x=y",
    "{scheme}://{host}/db?password={secret}",
    "{scheme}://app@{host}/db?sslpassword={secret}",
    "{scheme}://{host}/?token={secret}",
    "app:{secret}@{host}",
    "host=127.0.0.1 port=1 user=app password='{secret}'",
    "{scheme}+{scheme}://app:{secret}@{host}/db",
)


def test_the_tables_have_every_class_that_takes_a_dsn() -> None:
    """So that a new class comes here."""
    dsn = {
        line.partition("(")[0]
        for line in SURFACE.read_text(encoding="utf-8").splitlines()
        if "(dsn: " in line
    }
    made = {
        f"{type(make(f'postgresql://{NOWHERE}/d')).__name__}"
        for make in list(POSTGRES.values())[:-1]
    }
    assert {name.rpartition(".")[2] for name in dsn} - made <= {
        "check_streams",
        "install_streams",
        "upgrade_streams",
    }


async def _use(made: Any) -> None:
    """Open it, and write one item to a sink."""
    if not hasattr(made, "__aenter__"):
        return
    async with made:
        if hasattr(made, "write"):
            await made.write(RowBatch([{"id": 1}]))


def shown_by(make: Callable[[str], Any], address: str, *, opened: bool) -> str:
    """Everything that is shown of a class with this address."""
    logged: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(self.format(record))

    handler = Handler(logging.INFO)
    logging.getLogger().addHandler(handler)
    try:
        made = make(address)
        logged.extend((repr(made), repr(getattr(made, "__dict__", ""))))
        if opened:
            asyncio.run(_use(made))
    except Exception as error:
        logged.append("".join(traceback.format_exception(error)))
    finally:
        logging.getLogger().removeHandler(handler)
    return "\n".join(logged)


def leaked(text: str) -> list[str]:
    return [piece for piece in PIECES if piece.lower() in text.lower()]


@pytest.mark.parametrize("name", ALL)
@examples(2, long=200)
@example(secret="kQ7z@Xw9v/Vj4p?zB6q")
@example(secret="kQ7z/Xw9v#Vj4p[zB6q")
@example(secret="kQ7z:Xw9v@Vj4p,zB6q")
@given(secret=SECRETS)
def test_no_piece_of_a_password_is_shown(name: str, secret: str) -> None:
    """B-T30."""
    _assert_hidden(name, secret, opened=False)


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "secret",
    ["kQ7z@Xw9v/Vj4p?zB6q", "kQ7z%Xw9v:Vj4p zB6q", "kQ7zXw9vVj4pzB6q", "kQ7z]Xw9v☃Vj4pzB6q"],
)
def test_a_client_that_cannot_connect_shows_no_piece_of_a_password(name: str, secret: str) -> None:
    """B-T30; the clients' own errors and their causes are shown as well."""
    _assert_hidden(name, secret, opened=True)
    _assert_hidden(name, quote(secret, safe=""), opened=True)


def _assert_hidden(name: str, secret: str, *, opened: bool) -> None:
    scheme, make = ALL[name]
    for form in FORMS:
        address = form.format(scheme=scheme, secret=secret, host=NOWHERE)
        found = shown_by(make, address, opened=opened)
        assert not leaked(found), (address, found)


@pytest.mark.parametrize(
    "command",
    [
        ["pg", "check", "DSN"],
        ["queue", "lag", "DSN", "q"],
        ["stream", "list", "DSN"],
        ["dlq", "list", "DSN"],
        ["pg", "check", "a", "DSN"],
    ],
)
def test_no_command_shows_a_piece_of_a_password(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for secret in ("kQ7z@Xw9v/Vj4p?zB6q", "kQ7z#Xw9v Vj4p[zB6q"):
        for form in FORMS:
            dsn = form.format(scheme="postgresql", secret=secret, host=NOWHERE)
            with suppress(SystemExit):
                main([dsn if each == "DSN" else each for each in command])
            found = "".join(capsys.readouterr())
            assert not leaked(found), (dsn, found)


@pytest.mark.parametrize("absent", [None, ""])
@pytest.mark.parametrize(
    "name", [name for name in ALL if name not in {"a string as a sink", "http proxy"}]
)
def test_an_address_that_is_not_given_is_no_default(name: str, absent: Any) -> None:
    """As by an environment variable that is not set."""
    with pytest.raises(
        ConfigError, match=r"^\w+=(None|''): .*is an environment variable not set\?"
    ):
        ALL[name][1](absent)


async def test_no_command_and_no_function_takes_an_empty_dsn(real_clock: object) -> None:
    for absent in (None, ""):
        with pytest.raises(ConfigError, match="environment variable"):
            await check_streams(absent)  # type: ignore[arg-type]  # what a variable may be


@pytest.mark.parametrize("command", ["pg check", "queue lag", "stream lag", "dlq list"])
def test_a_command_with_an_empty_name_says_so(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), ""]) == 2
    assert "is an environment variable not set?" in capsys.readouterr().err


@pytest.mark.timeout(30)
@pytest.mark.parametrize("part", ["*", "a", ":a", "pass", "'"])
def test_a_long_value_is_shown_at_once(part: str) -> None:
    """The time for a search would grow with the square of its length, to minutes."""
    assert len(str(bad("name", part * 100_000, "must be short"))) < 300
