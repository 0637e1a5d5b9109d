"""Connections to a log whose schema has been checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.errors import ConfigError
from ..client.connections import Connections
from ..client.refusals import for_opening
from .opened import opened_schema

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from ..client.access import Access


async def connected_to_log(
    stack: AsyncExitStack, access: Access, schema: str, *, close_timeout: float
) -> Connections:
    """Connect and check the schema; `stack` closes the connections.

    Raises `ConfigError` if the server refuses the connection or the schema is missing or older, and
    `UnavailableError` if no server answers.
    """
    connections = await Connections.to(access, close_timeout)
    stack.push_async_callback(connections.close)
    try:
        async with connections.opening() as con, connections.statements.block(con):
            await opened_schema(con, schema)
    except ConfigError:
        raise
    except Exception as error:
        raise for_opening(error, access.place)  # noqa: B904  # it has its cause
    return connections
