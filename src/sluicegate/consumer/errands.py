"""Tasks that settle messages outside the workers: dead letters, parked records.

An errand's message keeps its key and its place in the window. A cancelled errand leaves its message
to a later claim. An exception of an errand ends the consumer with an error.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from .wait_reason import WaitReason

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from .._core.clock import Signal
    from .message import Message


class Errand(NamedTuple):
    """A running errand, and its purpose."""

    task: asyncio.Task[None]
    doing: WaitReason


class Errands:
    """The running errands, by message. `settled` fires after the end of each errand."""

    def __init__(self, failed: Callable[[BaseException], None], settled: Signal) -> None:
        self._running: dict[Message, Errand] = {}
        self._failed = failed
        self._settled = settled

    def start(
        self,
        message: Message,
        work: Coroutine[object, object, None],
        cut: Callable[[], None],
        doing: WaitReason = WaitReason.DEAD_LETTER,
    ) -> None:
        """Run `work` for a message; call `cut` if it is cancelled or fails."""
        task = asyncio.get_running_loop().create_task(work, name=f"errand {message.coordinates}")
        self._running[message] = Errand(task, doing)

        def ended(task: asyncio.Task[None]) -> None:
            errand = self._running.get(message)
            if errand is not None and errand.task is task:  # else another has followed it
                del self._running[message]
            if task.cancelled():
                cut()
            elif (error := task.exception()) is not None:
                cut()
                self._failed(error)
            self._settled.fire()

        task.add_done_callback(ended)

    def cut(self, messages: Iterable[Message]) -> None:
        """Cancel the errands of these messages."""
        for message in messages:
            if (errand := self._running.get(message)) is not None:
                errand.task.cancel()

    @property
    def running(self) -> frozenset[Message]:
        """Messages with an unfinished errand; a cancelled errand counts until its `cut` has run."""
        return frozenset(
            [message for message, errand in self._running.items() if not _is_done(errand.task)]
        )

    def doing(self, message: Message) -> WaitReason:
        """Return the purpose of the errand of a message."""
        return self._running[message].doing


def _is_done(task: asyncio.Task[None]) -> bool:
    """Return whether an errand has ended by itself, so that its message is elsewhere."""
    return task.done() and not task.cancelled() and task.exception() is None
