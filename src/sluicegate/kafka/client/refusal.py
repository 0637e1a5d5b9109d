"""Why a client could not start: aiokafka only logs the reasons and raises "unable to bootstrap"."""

from __future__ import annotations

import inspect
import ssl
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from aiokafka import conn
from aiokafka.errors import KafkaConnectionError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable


async def refusal_of(client: Any) -> Exception | None:
    """Ask each broker again; return its refusal of the login or certificate, otherwise `None`.

    Suspends until the brokers have answered, or the client's request timeout has passed.
    """
    inside = cast("dict[str, Any]", vars(client))
    connect: Any = attrgetter("create_conn")(conn)
    names: Iterable[str] = inspect.signature(connect).parameters
    options: dict[str, Any] = {
        name: inside[f"_{name}"]
        for name in names
        if name.startswith(("sasl_", "ssl_")) or name in ("client_id", "security_protocol")
        if f"_{name}" in inside
    }
    if options.get("security_protocol") == "PLAINTEXT":
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
