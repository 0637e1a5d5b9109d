"""Connections to one of several hosts.

1. asyncpg asks the hosts of a DSN one after another within one time limit, so a host that does not
   answer at all (a frozen or unreachable machine) would hide the others. Here each has its share.
2. A host that was silent, or whose connection was cut off by a shorter limit, is asked last from
   then on.
3. `prefer-standby` needs the roles of all hosts: it is left to asyncpg.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from ..._core.addresses import hosts as hosts_in
from ..._core.clock import LOOP_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_ROLE = "target_session_attrs"
_PORT = 5432


def connector(dsn: str, options: Mapping[str, Any], seconds: float) -> Callable[..., Any]:
    """Return the function that connects, in place of `asyncpg.connect`.

    Args:
        dsn: a checked DSN.
        options: the asyncpg options.
        seconds: the time limit for all hosts.
    """
    import asyncpg  # an optional dependency

    parts = urlsplit(dsn)
    given = [urlsplit(f"//{each}") for each in hosts_in(parts).split(",")]
    roles = {options.get("target_session_attrs"), *parse_qs(parts.query).get(_ROLE, ())}
    if len(given) == 1 or "host" in options or "prefer-standby" in roles:
        return asyncpg.connect
    if not all(each.hostname and "%" not in each.netloc for each in given):
        return asyncpg.connect  # a default, or a socket's folder
    hosts = [{"host": each.hostname, "port": each.port or _PORT} for each in given]
    return Hosts(hosts, seconds).connect


class Hosts:
    """The hosts of one DSN, in the order in which they are asked."""

    def __init__(self, hosts: list[dict[str, Any]], seconds: float) -> None:
        self._hosts = hosts
        self._share = seconds / len(hosts)

    async def connect(self, *arguments: Any, **options: Any) -> Any:
        """Connect to the first that answers and has the wanted role, as `asyncpg.connect` does."""
        import asyncpg  # an optional dependency

        make: Any = asyncpg.connect
        failed: Exception | None = None
        for host in [*self._hosts]:
            try:
                async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + self._share):
                    return await make(*arguments, **{**options, **host})
            except asyncpg.exceptions.TargetServerAttributeNotMatched as error:
                failed = failed or error
            except asyncio.CancelledError:
                self._ask_last(host)
                raise
            except TimeoutError:
                self._ask_last(host)
                told = f"{host['host']}:{host['port']} has not answered within {self._share:g} s"
                failed = TimeoutError(told)
            except (OSError, asyncpg.exceptions.CannotConnectNowError) as error:
                failed = error
        assert failed is not None
        raise failed

    def _ask_last(self, host: dict[str, Any]) -> None:
        self._hosts.remove(host)
        self._hosts.append(host)
