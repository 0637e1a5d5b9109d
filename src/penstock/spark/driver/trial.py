"""A trial of the sink on the driver before the job, so that its errors appear once and early.

1. A copy is opened, made from the pickled description as on the executors. It has its own loop in a
   separate thread, so that a caller may have a running loop, and a sink that is open elsewhere is
   not affected.
2. An open sink knows its destination, so it is checked again.
3. Nothing is written.
"""

from __future__ import annotations

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ..._core.errors import SinkError
from ..._core.opening import opened

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._core.sink import Sink

NOTE = (
    "penstock opened the sink on the driver to check it; if only the executors can reach the "
    "destination, pass check=False"
)


def try_out(description: bytes, check: Callable[[Sink[Any]], None]) -> None:
    """Open the sink, `check` it and close it again; blocks.

    Raises the errors of opening and of `check`.
    """
    with ThreadPoolExecutor(1, "penstock check") as thread:
        try:
            thread.submit(asyncio.run, _opened(description, check)).result()
        except (SinkError, OSError) as error:
            error.add_note(NOTE)
            raise


async def _opened(description: bytes, check: Callable[[Sink[Any]], None]) -> None:
    sink: Any = pickle.loads(description)  # noqa: S301  # made by this process
    async with opened(sink):
        check(sink)
