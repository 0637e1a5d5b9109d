"""Connection options of Kafka producers, checked before opening."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..._core import checks
from ..._core.extras import need
from ..groups.arguments import bootstrap_of, client_options, milliseconds, seconds_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..._core.addresses import Options

_OWNED = {
    "acks": "every record is acknowledged by all replicas in sync",
    "api_version": "it is negotiated with each broker",
    "bootstrap_servers": "use bootstrap=...",
    "compression_type": "use compression=...",
    "enable_idempotence": "use idempotent=...",
    "key_serializer": "key=... is also a function of an item",
    "linger_ms": "the batcher decides when a batch is complete: Limits(max_delay=...)",
    "loop": "the running loop is used",
    "max_batch_size": "use max_batch_bytes=...",
    "max_request_size": "use max_batch_bytes=...",
    "partitioner": "partition=... is a function of an item",
    "request_timeout_ms": "use request_timeout=..., in seconds",
    "retries": "a Retry around the sink retries",
    "transaction_timeout_ms": "use transaction_timeout=..., in seconds",
    "transactional_id": "flow.transaction(source, sink, ...) makes one for each claim",
    "value_serializer": "value=... is a function of an item",
}
_CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""The codes of Kafka's protocol."""
MAX_BATCH_BYTES = 1_000_000
"""Below the 1,048,588 bytes that a broker accepts by default (`message.max.bytes`)."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProducerOptions:
    """Options of a producer. Times are in seconds."""

    bootstrap: str
    compression: str | None
    max_batch_bytes: int
    is_idempotent: bool
    request_timeout: float
    close_timeout: float
    transaction_timeout: float
    client: Options

    @classmethod
    def of(
        cls,
        *,
        bootstrap: object,
        compression: str | None,
        max_batch_bytes: int,
        idempotent: object,
        request_timeout: object,
        close_timeout: object,
        transaction_timeout: object,
        client: Mapping[str, object],
    ) -> ProducerOptions:
        """Check the arguments. Raises `ConfigError`, and `MissingExtra` without aiokafka."""
        need("aiokafka", "kafka", "KafkaSink")
        from .insides import CLIENT_OPTIONS

        return cls(
            bootstrap=bootstrap_of(bootstrap),
            compression=_codec(compression),
            max_batch_bytes=checks.count("max_batch_bytes", max_batch_bytes),
            is_idempotent=checks.flag("idempotent", idempotent),
            request_timeout=seconds_of("request_timeout", request_timeout),
            close_timeout=seconds_of("close_timeout", close_timeout),
            transaction_timeout=seconds_of("transaction_timeout", transaction_timeout),
            client=client_options(
                client, CLIENT_OPTIONS, _OWNED, "KafkaSink, nor of aiokafka's client"
            ),
        )

    @property
    def codec(self) -> int:
        """The code of the compression in a batch's attributes."""
        return 0 if self.compression is None else _CODECS[self.compression]

    @property
    def request_timeout_ms(self) -> int:
        return milliseconds(self.request_timeout)

    @property
    def transaction_timeout_ms(self) -> int:
        return milliseconds(self.transaction_timeout)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for aiokafka's client; calls an `ssl_context` that is a function."""
        given = dict(self.client)
        if callable(context := given.get("ssl_context")):
            given["ssl_context"] = context()
        return {
            **given,
            "bootstrap_servers": self.bootstrap,
            "request_timeout_ms": self.request_timeout_ms,
        }

    def __repr__(self) -> str:
        return f"ProducerOptions(bootstrap={self.bootstrap!r})"


def _codec(compression: str | None) -> str | None:
    if compression is None:
        return None
    checks.choice("compression", compression, tuple(_CODECS))
    if compression != "gzip":
        need("cramjam", "kafka", f"compression={compression!r}")
    return compression
