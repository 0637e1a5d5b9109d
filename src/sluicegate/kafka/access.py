"""Where and how to connect to Kafka, for both clients; checked before opening, and shown without
secrets.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from .._core import checks
from .._core.addresses import Options
from .._core.errors import ConfigError
from .._core.opening import check_picklable
from .._core.tls import FILES, TlsFiles, check_tls, context_of
from .arguments import ANSWER_WITHIN, bootstrap_of, milliseconds, options_of, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta
    from ssl import SSLContext

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
_PROTOCOLS: tuple[SecurityProtocol, ...] = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
CLOSE_TIMEOUT = 5.0
_LOGIN = ("sasl_mechanism", "sasl_username", "sasl_password")
OF_AIOKAFKA = {
    "bootstrap_servers": "use bootstrap=...",
    "client_id": "use client_id=... of KafkaAccess",
    "request_timeout_ms": "use request_timeout=... of KafkaAccess, in seconds",
    "sasl_mechanism": "use sasl_mechanism=... of KafkaAccess",
    "sasl_plain_password": "use sasl_password=... of KafkaAccess",
    "sasl_plain_username": "use sasl_username=... of KafkaAccess",
    "security_protocol": "use security_protocol=... of KafkaAccess",
    "ssl_context": "use ssl_cafile=... or ssl_context=... of KafkaAccess",
}
"""The aiokafka options that an access has, and where."""
_OF_LIBRDKAFKA = {
    "client.id": "client_id",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.password": "sasl_password",
    "sasl.username": "sasl_username",
    "security.protocol": "security_protocol",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
OF_LIBRDKAFKA = {
    "bootstrap.servers": "use bootstrap=...",
    "metadata.broker.list": "use bootstrap=...",
    "sasl.mechanisms": "use sasl_mechanism=... of KafkaAccess",
    "socket.timeout.ms": "use request_timeout=... of KafkaAccess, in seconds",
    **{option: f"use {name}=... of KafkaAccess" for option, name in _OF_LIBRDKAFKA.items()},
}
"""The librdkafka options that an access has, and where."""


@dataclass(frozen=True, slots=True, repr=False)
class KafkaAccess:
    """Where and how to connect to Kafka; every class of `sluicegate.kafka` accepts it as
    `bootstrap`.

    Args:
        bootstrap: `"host:port"`, several of these separated by commas, or a list.
        security_protocol: `"PLAINTEXT"` (default), `"SSL"`, `"SASL_PLAINTEXT"` or `"SASL_SSL"`.
        sasl_mechanism: `"PLAIN"`, `"SCRAM-SHA-256"`, `"SCRAM-SHA-512"` or another mechanism of the
            client. Needs a protocol with SASL, as do the next two.
        sasl_username: the user.
        sasl_password: the password. Never shown.
        ssl_cafile: the file with the certificates to trust; default: those of the system. Needs a
            protocol with SSL, as do the next four.
        ssl_certfile: the file with the client's own certificate.
        ssl_keyfile: the file with its private key; default: `ssl_certfile`.
        ssl_password: the password of the private key. Never shown.
        ssl_context: an `ssl.SSLContext` instead of the files, or a function that returns it, which
            can be pickled. Not for librdkafka.
        client_id: the name by which brokers know the client, in quotas and logs.
        request_timeout: seconds to wait for a broker's response; default 10.
        close_timeout: seconds for closing the connections, for aborting a transaction and for
            leaving a group; default 5.
        client: other options of the client by its own names: aiokafka's, or librdkafka's for
            `ConfluentKafkaSource`. Never shown.

    Raises `ConfigError` for a bad argument. Connects to nothing.
    """

    bootstrap: str | Sequence[str]
    security_protocol: SecurityProtocol = field(default="PLAINTEXT", kw_only=True)
    sasl_mechanism: str | None = field(default=None, kw_only=True)
    sasl_username: str | None = field(default=None, kw_only=True)
    sasl_password: str | None = field(default=None, kw_only=True)
    ssl_cafile: str | None = field(default=None, kw_only=True)
    ssl_certfile: str | None = field(default=None, kw_only=True)
    ssl_keyfile: str | None = field(default=None, kw_only=True)
    ssl_password: str | None = field(default=None, kw_only=True)
    ssl_context: SSLContext | Callable[[], SSLContext] | None = field(default=None, kw_only=True)
    client_id: str | None = field(default=None, kw_only=True)
    request_timeout: float | timedelta = field(default=ANSWER_WITHIN, kw_only=True)
    close_timeout: float | timedelta = field(default=CLOSE_TIMEOUT, kw_only=True)
    client: Mapping[str, Any] = field(default_factory=Options, kw_only=True)

    def __post_init__(self) -> None:
        checks.choice("security_protocol", self.security_protocol, _PROTOCOLS)
        for names, part in ((_LOGIN, "SASL"), ((*FILES, "ssl_context"), "SSL")):
            for name in names:
                if getattr(self, name) is not None and part not in self.security_protocol:
                    rule = f"needs security_protocol={' or '.join(_with(part))}"
                    raise ConfigError(f"{name}=...: {rule}")
        for name in (*_LOGIN, "client_id"):
            value = cast("object", getattr(self, name))
            if value is not None and not (isinstance(value, str) and value):
                raise ConfigError(f"{name}=...: must be text that is not empty")
        check_tls(self)
        found = {
            "bootstrap": bootstrap_of(self.bootstrap),
            "request_timeout": seconds_of("request_timeout", self.request_timeout),
            "close_timeout": seconds_of("close_timeout", self.close_timeout),
            "client": Options(options_of(self.client)),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in ("ssl_context", "client"):
            check_picklable(self, name, given[name])
        return partial(type(self), **given), ()

    def __repr__(self) -> str:
        return f"KafkaAccess({self.bootstrap!r})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClientOptions:
    """What the options of every client have: how it connects. Times are in seconds."""

    access: KafkaAccess

    @property
    def bootstrap(self) -> str:
        """The addresses, separated by commas."""
        return cast("str", self.access.bootstrap)

    @property
    def request_timeout(self) -> float:
        """Seconds to wait for a response that a broker does not delay."""
        return cast("float", self.access.request_timeout)

    @property
    def close_timeout(self) -> float:
        """Seconds for closing, and for leaving a group."""
        return cast("float", self.access.close_timeout)

    @property
    def request_timeout_ms(self) -> int:
        """The same in milliseconds."""
        return milliseconds(self.request_timeout)


def access_of(bootstrap: object) -> KafkaAccess:
    """Return the access of an argument that is an address or an access. Raises `ConfigError`."""
    return bootstrap if isinstance(bootstrap, KafkaAccess) else KafkaAccess(cast("str", bootstrap))


def of_aiokafka(access: KafkaAccess) -> dict[str, Any]:
    """Return the aiokafka options, except its addresses and times."""
    context = context_of(access)
    if context is None and "SSL" in access.security_protocol:
        context = TlsFiles()
    return _given(
        security_protocol=access.security_protocol,
        ssl_context=context,
        sasl_mechanism=access.sasl_mechanism,
        sasl_plain_username=access.sasl_username,
        sasl_plain_password=access.sasl_password,
        client_id=access.client_id,
    )


def of_librdkafka(access: KafkaAccess) -> dict[str, Any]:
    """Return the librdkafka options, except its addresses and times. Raises `ConfigError`."""
    if access.ssl_context is not None:
        rule = "librdkafka does not take it; give ssl_cafile=... and the other files"
        raise ConfigError(f"ssl_context=...: {rule}")
    return _given(**{option: getattr(access, name) for option, name in _OF_LIBRDKAFKA.items()})


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _with(part: str) -> list[str]:
    return [repr(each) for each in _PROTOCOLS if part in each]
