"""Options of a connection to NATS: checked at construction, and never displayed. White box: the
checked options.
"""

from __future__ import annotations

import pickle
import ssl
from typing import Any

import pytest

from sluicegate import ConfigError
from sluicegate._core.tls import TlsFiles
from sluicegate.nats.options import NatsOptions

SECRET = "s3cret"


def options(servers: object = "127.0.0.1:4222", **client: Any) -> NatsOptions:
    within = client.pop("connect_timeout", 2.0)
    return NatsOptions.of(servers=servers, connect_timeout=within, client=client, of="NatsSink")


@pytest.mark.parametrize(
    ("servers", "place"),
    [
        ("nats.example:4222", "nats.example:4222"),
        ("nats.example", "nats.example"),
        ("nats://nats.example:4222/", "nats://nats.example:4222/"),
        (f"nats://app:{SECRET}@one:4222, tls://{SECRET}@two", "nats://one:4222, tls://two"),
        (["one:4222", "two:4222"], "one:4222, two:4222"),
        (f"app:{SECRET}@[::1]:4222", "[::1]:4222"),
        ("wss://nats.example/", "wss://nats.example/"),
    ],
)
def test_an_address_is_shown_without_its_login(servers: object, place: str) -> None:
    made = options(servers, password=SECRET)
    assert made.place == place
    assert SECRET not in f"{made!r} {made.client!r}"


@pytest.mark.parametrize(
    "servers",
    [
        "",
        [],
        None,
        b"one:4222",
        7,
        "one:4222,",
        ["one:4222", 2],
        "one:70000",
        "http://one:4222",
        "a@b@c",
        f"nats://app:{SECRET}@one:port",
        f"app:{SECRET}@one two",
        ["nats://one", "ws://two"],
    ],
)
def test_a_bad_address_is_refused_without_its_login(servers: object) -> None:
    with pytest.raises(ConfigError, match=r"^servers=.*: (must be|its host or port)") as raised:
        options(servers)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_reconnect_attempts": 3}, "is set by Sluicegate: a lost connection is restored"),
        ({"error_cb": print}, "is set by Sluicegate"),
        ({"pending_size": 1}, "nothing is buffered"),
        ({"pasword": SECRET}, "pasword=...: is not an option of NatsSink, nor of nats-py's"),
        ({"connect_timeout": 0}, "connect_timeout=0: must be more than 0 seconds"),
    ],
)
def test_an_option_that_is_not_the_callers_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as raised:
        options(**given)
    assert SECRET not in str(raised.value)


def test_options_of_the_client_pass_and_travel_with_tls_as_a_function() -> None:
    made: NatsOptions = pickle.loads(pickle.dumps(options(user="app", tls=TlsFiles())))
    arguments = made.arguments()
    assert arguments["user"] == "app"
    assert isinstance(arguments["tls"], ssl.SSLContext)
    assert arguments["servers"] == ["127.0.0.1:4222"]
    assert arguments["reconnect_time_wait"] == 0.5
    assert options(reconnect_time_wait=3).arguments()["reconnect_time_wait"] == 3


def test_a_finished_tls_context_passes() -> None:
    context = ssl.create_default_context()
    assert options(tls=context).arguments()["tls"] is context
