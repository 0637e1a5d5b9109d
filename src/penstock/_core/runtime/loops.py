"""Which event loop runs here, and what is refused because of it."""

from __future__ import annotations

import asyncio

from ..errors import ConfigError

running_loop = asyncio._get_running_loop  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
"""As `asyncio.get_running_loop`, but answers `None` where there is none, and costs nothing."""


def refuse_in_a_loop(call: str, instead: str) -> None:
    """Raise `ConfigError` where an event loop runs in this thread: a call that blocks would stop
    everything that runs on it.
    """
    if running_loop() is not None:
        raise ConfigError(f"{call} would block the event loop that runs in this thread; {instead}")
