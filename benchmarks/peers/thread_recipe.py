"""The recipe of threaded programs: a `queue.Queue` and a thread that collects up to `size` items or
`linger` seconds.
"""

from __future__ import annotations

import queue
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_END: Any = object()
"""The end mark, put last; earlier items are still written."""


class ThreadRecipe:
    """A bounded queue and one collecting thread. `with` starts it; leaving waits until all items
    are written.
    """

    def __init__(
        self, write: Callable[[Sequence[Any]], object], *, size: int, linger: float, depth: int
    ) -> None:
        self._write = write
        self._size = size
        self._linger = linger
        self._thread = threading.Thread(target=self._work)
        self.queue: queue.Queue[Any] = queue.Queue(depth)

    def __enter__(self) -> queue.Queue[Any]:
        self._thread.start()
        return self.queue

    def __exit__(self, *error: object) -> None:
        self.queue.put(_END)
        self._thread.join()

    def _work(self) -> None:
        ended = False
        while not ended:
            first = self.queue.get()
            if first is _END:
                return
            batch = [first]
            ended = self._collect(batch)
            self._write(batch)

    def _collect(self, batch: list[Any]) -> bool:
        """Fill the batch; return whether that was the end."""
        until = monotonic() + self._linger
        while len(batch) < self._size:
            try:
                item = self.queue.get(timeout=max(0.0, until - monotonic()))
            except queue.Empty:
                return False
            if item is _END:
                return True
            batch.append(item)
        return False
