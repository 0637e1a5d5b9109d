"""The handler of all consumers: it records the start and end of each message.

It uses only the standard library, since every consumer has its own environment. A message is JSON:
its number `n`, its seconds of work, and how it fails ("" or "always"). With `FIXED=1` none fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

BOOTSTRAP, TOPIC, GROUP = (os.environ[name] for name in ("KAFKA", "TOPIC", "GROUP"))
IS_FIXED = os.environ.get("FIXED") == "1"
SIZE = int(os.environ.get("BATCH", "0"))
"""Messages per batch; 0: one at a time."""
CONCURRENCY = int(os.environ.get("CONCURRENCY", "16"))


def say(event: str, n: int, key: str = "") -> None:
    os.write(1, f"{time.time():.6f} {event} {n} {key}\n".encode())  # Faust replaces `sys.stdout`


async def work(key: bytes | None, value: bytes) -> None:
    """Handle one message."""
    message: dict[str, Any] = json.loads(value)
    name = (key or b"").decode()
    say("start", message["n"], name)
    try:
        await asyncio.sleep(0.001 if IS_FIXED else message["seconds"])
    except asyncio.CancelledError:
        say("cut", message["n"], name)
        raise
    if message["fails"] and not IS_FIXED:
        say("fail", message["n"], name)
        raise ValueError("cannot be handled")
    say("end", message["n"], name)


async def work_on(batch: list[tuple[bytes | None, bytes]]) -> None:
    """Handle a batch, one message after the other; a message that fails fails the call."""
    say("batch", len(batch))
    for key, value in batch:
        await work(key, value)
