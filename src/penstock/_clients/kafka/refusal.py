"""Why a client could not be started: aiokafka logs the reasons and raises "unable to bootstrap"."""

from __future__ import annotations

import inspect
import ssl
from typing import Any

from aiokafka import conn
from aiokafka.errors import KafkaConnectionError, KafkaError


async def refusal_of(consumer: Any) -> Exception | None:
    """A refused login or certificate, by asking each broker once more; `None` for anything else.

    Suspends until the brokers have answered, or have not within the client's request timeout.
    """
    client: Any = getattr(consumer, "_client", None)
    connect: Any = getattr(conn, "create_conn")  # noqa: B009  # without types
    names = inspect.signature(connect).parameters
    options = {
        name: getattr(client, f"_{name}")
        for name in names
        if name.startswith(("sasl_", "ssl_")) or name in ("client_id", "security_protocol")
        if hasattr(client, f"_{name}")
    }
    if client is None or options.get("security_protocol") == "PLAINTEXT":
        return None
    for host, port, _ in client.hosts:
        try:
            connection = await connect(host, port, **options)
        except (TimeoutError, KafkaConnectionError):
            continue
        except (KafkaError, ssl.SSLError) as error:
            return error
        except OSError:
            continue
        connection.close()
    return None
