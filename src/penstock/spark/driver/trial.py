"""The sink, opened once on the driver before the job: what is wrong with it is told there, and not
four times by every task.

1. Opened is a copy made from the pickled description, as the executors make theirs; on a loop of
   its own in a thread of its own, so that a caller with a running loop may call, and a sink that is
   open elsewhere stays as it is.
2. An open sink knows its destination, so the columns are judged again.
3. Nothing is written.
"""

from __future__ import annotations

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ..._core.errors import SinkError
from ..._core.opening import opened
from ..values.types import check_types

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NOTE = (
    "penstock opened the sink on the driver, to see whether it can work; where only the "
    "executors reach the destination pass check=False"
)


def try_out(description: bytes, schema: StructType) -> None:
    """Open the sink and close it again; blocks until that is done. Raises what opening raises, and
    `ConfigError` for columns that do not fit.
    """
    with ThreadPoolExecutor(1, "penstock check") as thread:
        try:
            thread.submit(asyncio.run, _opened(description, schema)).result()
        except (SinkError, OSError) as error:
            error.add_note(NOTE)
            raise


async def _opened(description: bytes, schema: StructType) -> None:
    sink: Any = pickle.loads(description)  # noqa: S301  # made by this process
    async with opened(sink):
        check_types(sink, schema)
