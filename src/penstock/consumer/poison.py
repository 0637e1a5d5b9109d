"""What becomes of messages that cannot be handled.

| strategy | the message | its key |
|---|---|---|
| `skip` | to the dead letters, if there are any; else given up, logged as an error | continues |
| `block` | stays; its position is not passed | waits for `unblock` |
| `block_and_dead_letter` | to the dead letters, and stays | waits for `unblock` |
| `park_key` | to the park store, and so do later messages of its key | continues, parked |

1. A dead letter is written before its message is settled. If the write fails, it is written again
   until it succeeds; the message is never given up for the dead letters' fault.
2. The circuit counts dead letters per partition: too many stop the consumer instead of moving the
   partition to the dead letters.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from .._core.say import say
from .._core.told import for_log
from .wait_reason import WaitReason

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from .._core.retry_policy import BackoffFunction
    from .commons import Commons
    from .errands import Errands
    from .message import Message
    from .schedule import Schedule

PoisonStrategy = Literal["skip", "block", "block_and_dead_letter", "park_key"]
STRATEGIES: tuple[PoisonStrategy, ...] = ("skip", "block", "block_and_dead_letter", "park_key")

logger = logging.getLogger("penstock.consumer")

_GIVEN_UP = "%s: %s is given up without a dead letter (%s)"
_BLOCKED = "%s: %s blocks its key until unblock() (%s)"
_UNWRITTEN = "%s: the dead letter of %s could not be written (%s); next try in %.3g s"


class Letters(Protocol):
    """Writes dead letters of source records."""

    async def bury(self, message: Message, error: BaseException) -> None:
        """Write one; it is durable when this returns. Raises if it is not."""


class Parked(Protocol):
    """Parks messages of poisoned keys."""

    async def park(self, message: Message, error: BaseException | None) -> None:
        """Write a message to the park store; `error` for the one that is poison."""


class Poison:
    """Carries out the strategy for poison messages, and writes dead letters."""

    def __init__(
        self,
        strategy: PoisonStrategy,
        schedule: Schedule,
        errands: Errands,
        commons: Commons,
        backoff: BackoffFunction,
        *,
        letters: Letters | None = None,
        parked: Parked | None = None,
    ) -> None:
        self._strategy = strategy
        self._schedule = schedule
        self._errands = errands
        self._clock = commons.clock
        self._counts = commons.counts
        self._signals = commons.signals
        self._name = commons.name
        self._backoff = backoff
        self._letters = letters
        self._parked = parked

    def take(self, message: Message, error: BaseException) -> None:
        """Carry out the strategy for a poison message, whose turn goes on until it is settled."""
        if self._strategy == "block":
            self._block(message, error)
        elif self._strategy == "park_key":
            self._start(message, self._park(message, error), WaitReason.PARKED)
        elif self._letters is not None:
            self._start(message, self._write(message, error, blocks=self._strategy != "skip"))
        else:
            say(logger, logging.ERROR, _GIVEN_UP, self._name, message.coordinates, for_log(error))
            self._counts.count("terminated")
            self._settled(message)

    def bury(self, message: Message, error: BaseException) -> None:
        """Write a message to the dead letters and continue its key; without any it is poison."""
        if self._letters is None:
            self.take(message, error)
        else:
            self._start(message, self._write(message, error, blocks=False))

    def _block(self, message: Message, error: BaseException) -> None:
        say(logger, logging.ERROR, _BLOCKED, self._name, message.coordinates, for_log(error))
        if message.claim.is_closing:
            self._left(message)
        else:
            self._schedule.block(message, error)

    async def _write(self, message: Message, error: BaseException, *, blocks: bool) -> None:
        assert self._letters is not None
        tries = 0
        while True:
            try:
                await self._letters.bury(message, error)
                break
            except Exception as failed:
                tries += 1
                wait = self._backoff(tries, failed)
                told = for_log(failed)
                say(logger, logging.ERROR, _UNWRITTEN, self._name, message.coordinates, told, wait)
                await self._clock.sleep(wait)
        self._counts.count("dead_lettered")
        if blocks:
            self._block(message, error)
        else:
            self._settled(message)

    async def _park(self, message: Message, error: BaseException) -> None:
        assert self._parked is not None
        await self._parked.park(message, error)
        self._counts.count("parked")
        self._settled(message)

    def _start(
        self,
        message: Message,
        work: Coroutine[object, object, None],
        doing: WaitReason = WaitReason.DEAD_LETTER,
    ) -> None:
        self._errands.start(message, work, partial(self._left, message), doing)

    def _settled(self, message: Message) -> None:
        message.claim.settled(message.index)
        self._schedule.finish(message)
        self._signals.work.fire()
        self._signals.settled.fire()

    def _left(self, message: Message) -> None:
        """Leave a message to a later claim."""
        self._counts.count("dropped")
        self._schedule.finish(message)
        self._signals.work.fire()
        self._signals.settled.fire()
