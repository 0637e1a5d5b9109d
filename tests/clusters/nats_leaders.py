"""The leaders of a cluster of NATS and of its streams.

White box: the ports and names of the servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from nats.aio.client import Client

from nats import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.testing import EmbeddedNats

SECONDS = 60
LOOK_EVERY = 0.01


def start(nats: EmbeddedNats, node: int | None = None) -> None:
    """Start the servers, or one; return when JetStream has a leader."""
    nats.start(node)
    ask(nats, "$JS.API.INFO")


def leader_of(nats: EmbeddedNats, stream: str) -> int:
    """The number of the server that leads a stream; wait until there is one."""
    return nats._names.index(_leader_in(ask(nats, f"$JS.API.STREAM.INFO.{stream}", _leader_in))) + 1


def ask(nats: EmbeddedNats, subject: str, has: Callable[[Any], object] = bool) -> Any:
    """Ask JetStream until the answer has no error, and `has` what it should."""
    port = nats._ports[nats.running[0] - 1]
    with ThreadPoolExecutor(1) as beside:  # the caller's thread may have a running loop
        return beside.submit(asyncio.run, _answer(port, subject, has)).result()


def _leader_in(told: Any) -> str:
    leader: str = (told.get("cluster") or {}).get("leader", "")
    return leader


async def _answer(port: int, subject: str, has: Callable[[Any], object]) -> Any:
    client = Client()
    await client.connect(f"nats://127.0.0.1:{port}")
    try:
        async with asyncio.timeout(SECONDS):
            while True:
                with contextlib.suppress(errors.TimeoutError, errors.NoRespondersError):
                    answer = json.loads((await client.request(subject, timeout=1)).data)
                    if "error" not in answer and has(answer):
                        return answer
                await asyncio.sleep(LOOK_EVERY)
    finally:
        await client.close()
