"""Programs that a test runs as separate processes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sluicegate.testing.servers.program import reap

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncGenerator


@asynccontextmanager
async def child(*command: str, **options: Any) -> AsyncGenerator[Process]:
    """Start a program, with options of `create_subprocess_exec`; kill it at the end if it still
    runs.
    """
    process = await asyncio.create_subprocess_exec(*command, **options)
    try:
        yield process
    finally:
        await reap(process)
