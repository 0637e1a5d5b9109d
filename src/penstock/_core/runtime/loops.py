"""The event loop that runs in this thread."""

from __future__ import annotations

import asyncio

from ..errors import ConfigError

running_loop = asyncio._get_running_loop  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
"""As `asyncio.get_running_loop`, but `None` without one, and at hardly any cost."""


def refuse_in_a_loop(call: str, instead: str) -> None:
    """Raise `ConfigError` if an event loop runs in this thread, which `call` would block."""
    if running_loop() is not None:
        raise ConfigError(f"{call} would block the event loop that runs in this thread; {instead}")
