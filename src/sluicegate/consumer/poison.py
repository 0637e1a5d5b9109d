"""The treatment of messages that cannot be handled.

| strategy | the message | its key |
|---|---|---|
| `skip` | to the dead letters, if there are any; else settled, logged as an error | continues |
| `block` | stays; the position does not pass it | waits for `unblock` |
| `block_and_dead_letter` | to the dead letters, and stays | waits for `unblock` |
| `park_key` | to the park store, and so do later messages of its key | waits for `unpark` |
| `exit` | stays; the position does not pass it | waits: the run ends and raises the error |

1. A dead letter is written before its message is settled. A failed write is repeated until it
   succeeds; a failure of the dead letters never loses a message.
2. The circuit is checked before anything is written. A message that opens it stays as if blocked,
   so that no later message of its key is handled before it while the consumer stops.
3. A message replayed from the park store returns to it, regardless of the strategy.
4. A message whose row may have been applied (`StoredRowDiffers`) is never given up without a dead
   letter: with `skip` and no dead letters it is blocked.
5. A source that takes records back decides about poison by its own settings, except with `exit`.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from .._core.errors import StoredRowDiffers
from .._core.logs import for_log, log_safely

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from .commons import Commons
    from .counts import Fate
    from .departures import Departures
    from .errands import Errands
    from .giving_back import Returns
    from .insisting import Insisting
    from .letter_circuit import LetterCircuit
    from .message import Message
    from .parker import Parker
    from .schedule import Schedule
    from .unparking import Replays

PoisonStrategy = Literal["skip", "block", "block_and_dead_letter", "park_key", "exit"]
STRATEGIES: tuple[PoisonStrategy, ...] = (
    "skip",
    "block",
    "block_and_dead_letter",
    "park_key",
    "exit",
)

logger = logging.getLogger("sluicegate.consumer")

_GIVEN_UP = "%s: %s is given up without a dead letter (%s)"
_BLOCKED = "%s: %s blocks its key until unblock() (%s)"
_EXITS = "%s: %s cannot be handled, which ends the run; it is delivered again (%s)"


class Letters(Protocol):
    """Writer of dead letters of source records."""

    async def bury(self, message: Message, error: BaseException) -> None:
        """Write a dead letter; it is durable when this returns. Raises if the write failed."""


class Poison:
    """The strategy for poison messages, including their dead letters."""

    def __init__(
        self,
        strategy: PoisonStrategy,
        schedule: Schedule,
        errands: Errands,
        commons: Commons,
        *,
        circuit: LetterCircuit,
        departures: Departures,
        insisting: Insisting,
        stop: Callable[[BaseException], None],
        letters: Letters | None = None,
        parker: Parker | None = None,
        replays: Replays | None = None,
        returns: Returns | None = None,
    ) -> None:
        self._strategy = strategy
        self._schedule = schedule
        self._errands = errands
        self._commons = commons
        self._circuit = circuit
        self._departures = departures
        self._insisting = insisting
        self._stop = stop
        self._letters = letters
        self._parker = parker
        self._replays = replays
        self._returns = returns
        self._buried: set[Message] = set()
        """Blocked messages with a dead letter."""

    def acked(self, message: Message) -> None:
        """Settle an acknowledged message that `unpark` replayed."""
        if self._replays is not None:
            self._replays.handled(message)

    def take(self, message: Message, error: BaseException) -> None:
        """Carry out the strategy for a poison message, whose turn continues until it is settled."""
        self._tell(message, error, self._strategy)
        if message.is_unparked and self._replays is not None:
            self._replays.failed(message, error)
        elif self._strategy == "exit":
            self._exit(message, error)
        elif self._returns is not None:
            self._returns.give_up(message, error)
        elif self._strategy == "block":
            self._block(message, error)
        elif self._opens_circuit(message, error):
            return
        elif self._parker is not None:
            self._parker.take(message, error)
        elif self._letters is not None:
            self._start(message, self._write(message, error, blocks=self._strategy != "skip"))
        elif isinstance(error, StoredRowDiffers):
            self._block(message, error)
        else:
            self._give_up(message, error)

    def block(self, message: Message, error: BaseException) -> None:
        """Keep a message and its key until `unblock`, regardless of the strategy; rule 3 still
        applies.
        """
        if message.is_unparked:
            self.take(message, error)
            return
        self._tell(message, error, "block")
        self._block(message, error)

    def bury(self, message: Message, error: BaseException) -> None:
        """Write a message to the dead letters and continue its key; without dead letters it is
        poison.
        """
        if self._returns is not None:
            self._tell(message, error, "dead_letter")
            self._returns.give_up(message, error, bury=True)
            return
        if self._letters is None:
            self.take(message, error)
            return
        self._tell(message, error, "dead_letter")
        if message.is_unparked or not self._opens_circuit(message, error):
            self._start(message, self._write(message, error, blocks=False))

    # -- blocked messages --------------------------------------------------------------------------

    def try_again(self, message: Message) -> None:
        """Make a blocked message ready, with attempts from 1."""
        message.claim.attempts.pop(message.index, None)
        self._buried.discard(message)
        self._schedule.unblock(message)
        self._commons.signals.work.fire()

    def skip(self, message: Message) -> None:
        """Settle a blocked message without another try, with a dead letter if there are dead
        letters.
        """
        error = self._schedule.blocked[message]
        self._schedule.take_blocked(message)
        if message in self._buried:
            self._buried.remove(message)
            self._settled(message, "dead_lettered")
        elif self._letters is not None:
            self._start(message, self._write(message, error, blocks=False))
        else:
            self._give_up(message, error)

    def _block(self, message: Message, error: BaseException, *, has_letter: bool = False) -> None:
        name, told = self._commons.name, for_log(error)
        log_safely(logger, logging.ERROR, _BLOCKED, name, message.coordinates, told)
        self._keep(message, error)
        if has_letter and message in self._schedule.blocked:
            self._buried.add(message)

    def _exit(self, message: Message, error: BaseException) -> None:
        log_safely(
            logger, logging.ERROR, _EXITS, self._commons.name, message.coordinates, for_log(error)
        )
        self._keep(message, error)
        self._stop(error)

    def _keep(self, message: Message, error: BaseException) -> None:
        if message.claim.is_closing:
            self.leave(message)
        else:
            self._schedule.block(message, error)
            self._buried &= self._schedule.blocked.keys()  # others have left with their claims

    # -- dead letters ------------------------------------------------------------------------------

    def _opens_circuit(self, message: Message, error: BaseException) -> bool:
        limit = self._circuit.judge(message.claim, error)
        if limit is None:
            return False
        self._keep(message, error)
        self._stop(limit)
        return True

    async def _write(self, message: Message, error: BaseException, *, blocks: bool) -> None:
        assert self._letters is not None
        write = partial(self._letters.bury, message, error)
        what = f"the dead letter of {message.coordinates}"
        if not await self._insisting.on(write, what, message.claim):
            self.leave(message)
            return
        self._commons.counts.count("letters")
        if blocks:
            self._block(message, error, has_letter=True)
        else:
            self._settled(message, "dead_lettered")

    def _give_up(self, message: Message, error: BaseException) -> None:
        log_safely(
            logger,
            logging.ERROR,
            _GIVEN_UP,
            self._commons.name,
            message.coordinates,
            for_log(error),
        )
        self._settled(message, "terminated")

    # -- the end of a message ----------------------------------------------------------------------

    def _settled(self, message: Message, fate: Fate) -> None:
        """Settle a message that failed for good."""
        if message.is_unparked and self._replays is not None:
            self._commons.counts.count(fate)
            self._replays.handled(message)
        else:
            self._departures.settle(message, fate)

    def leave(self, message: Message) -> None:
        """Leave a message to a later claim."""
        if message.is_unparked and self._replays is not None:
            self._replays.left(message)
        else:
            self._departures.leave(message)

    def dropped(self, messages: Sequence[Message]) -> None:
        """Record messages that were removed with their claims before their turn ended."""
        if self._replays is not None:
            self._replays.dropped(messages)

    def _tell(self, message: Message, error: BaseException, action: str) -> None:
        name = self._commons.name
        self._commons.observers.tell(lambda seen: seen.on_poison(name, message, error, action))

    def look(self) -> None:
        """Park records of parked keys that have arrived."""
        if self._parker is not None and self._schedule.parked:
            self._parker.look()

    def _start(self, message: Message, work: Coroutine[object, object, None]) -> None:
        self._errands.start(message, work, partial(self.leave, message))
