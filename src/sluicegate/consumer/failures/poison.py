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
6. A blocked message keeps its key and its place in the window until `unblock` or the end of its
   claim; then it is delivered again. `retry` restarts its attempts. `skip` ends it without another
   attempt, with a dead letter if the consumer has dead letters and the message has none yet.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Literal

from ..._core.errors import StoredRowDiffers
from ..._core.logs import for_log, log_safely
from ..lanes.keys import is_same, none_of
from ..operating.report import BlockedMessage

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from ..._core.source import TopicPartition
    from ..lanes.message import Message
    from ..lanes.schedule import Schedule
    from ..run import Fate, Run
    from .dead_letters import LetterCircuit, LetterWriter
    from .departures import Departures, Returns
    from .parking import Parker, Replays


PoisonStrategy = Literal["skip", "block", "block_and_dead_letter", "park_key", "exit"]
STRATEGIES: tuple[PoisonStrategy, ...] = (
    "skip",
    "block",
    "block_and_dead_letter",
    "park_key",
    "exit",
)

Unblocking = Literal["retry", "skip"]
UNBLOCKING: tuple[Unblocking, ...] = ("retry", "skip")

logger = logging.getLogger("sluicegate.consumer")

_GIVEN_UP = "%s: %s is given up without a dead letter (%s)"
_BLOCKED = "%s: %s blocks its key until unblock() (%s)"
_EXITS = "%s: %s cannot be handled, which ends the run; it is delivered again (%s)"


class PoisonTreatment:
    """The strategy for poison messages, including their dead letters."""

    def __init__(
        self,
        strategy: PoisonStrategy,
        schedule: Schedule,
        departures: Departures,
        run: Run,
        *,
        circuit: LetterCircuit,
        letters: LetterWriter | None = None,
        parker: Parker | None = None,
        replays: Replays | None = None,
        returns: Returns | None = None,
    ) -> None:
        self._strategy = strategy
        self._schedule = schedule
        self.departures = departures
        self._run = run
        self._circuit = circuit
        self._letters = letters
        self.parker = parker
        self.replays = replays
        self.returns = returns
        self._buried: set[Message] = set()
        """Blocked messages with a dead letter."""

    def finish_replay(self, message: Message) -> None:
        """Settle an acknowledged message that `unpark` replayed."""
        if self.replays is not None:
            self.replays.finish(message)

    def take(self, message: Message, error: BaseException) -> None:
        """Carry out the strategy for a poison message, whose turn continues until it is settled."""
        self._tell(message, error, self._strategy)
        if message.is_unparked and self.replays is not None:
            self.replays.fail(message, error)
        elif self._strategy == "exit":
            self._exit(message, error)
        elif self.returns is not None:
            self.returns.give_up(message, error)
        elif self._strategy == "block":
            self._block(message, error)
        elif self._opens_circuit(message, error):
            return
        elif self.parker is not None:
            self.parker.take(message, error)
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
        if self.returns is not None:
            self._tell(message, error, "dead_letter")
            self.returns.give_up(message, error, bury=True)
            return
        if self._letters is None:
            self.take(message, error)
            return
        self._tell(message, error, "dead_letter")
        if message.is_unparked or not self._opens_circuit(message, error):
            self._start(message, self._write(message, error, blocks=False))

    # -- blocked messages --------------------------------------------------------------------------

    def blocked(self) -> tuple[BlockedMessage, ...]:
        """Return the blocked messages; the one blocked longest comes first."""
        return tuple(
            [
                BlockedMessage(
                    message.claim.partition,
                    message.offset,
                    message.order_key,
                    message.attempts.failed,
                    error,
                )
                for message, error in self._schedule.blocked.items()
            ]
        )

    def unblock(self, key: object, partition: TopicPartition | None, action: Unblocking) -> int:
        """Continue with the blocked messages of a key; return their number.

        Raises `NoSuchKey` if there is none.
        """
        found = [
            message
            for message in self._schedule.blocked
            if is_same(message.order_key, key) and partition in {None, message.claim.partition}
        ]
        if not found:
            shown = [f"{each.key!r} of {each.partition}" for each in self.blocked()]
            raise none_of("blocked", key, partition, shown)
        for message in found:
            if action == "retry":
                self._try_again(message)
            else:
                self._skip(message)
        return len(found)

    def _try_again(self, message: Message) -> None:
        """Make a blocked message ready, with attempts from 1."""
        message.claim.attempts.pop(message.index, None)
        self._buried.discard(message)
        self._schedule.unblock(message)
        self._run.work.fire()

    def _skip(self, message: Message) -> None:
        """Settle a blocked message without another attempt, with a dead letter if there are dead
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
        name, told = self._run.name, for_log(error)
        log_safely(logger, logging.ERROR, _BLOCKED, name, message.coordinates, told)
        self._keep(message, error)
        if has_letter and message in self._schedule.blocked:
            self._buried.add(message)

    def _exit(self, message: Message, error: BaseException) -> None:
        log_safely(
            logger, logging.ERROR, _EXITS, self._run.name, message.coordinates, for_log(error)
        )
        self._keep(message, error)
        self._run.end(error)

    def _keep(self, message: Message, error: BaseException) -> None:
        if message.claim.is_closing:
            self.leave(message)
        else:
            self._schedule.block(message, error)
            self._buried &= self._schedule.blocked.keys()  # others have left with their claims

    # -- dead letters ------------------------------------------------------------------------------

    def _opens_circuit(self, message: Message, error: BaseException) -> bool:
        limit = self._circuit.count_failure(message.claim, error)
        if limit is None:
            return False
        self._keep(message, error)
        self._run.end(limit)
        return True

    async def _write(self, message: Message, error: BaseException, *, blocks: bool) -> None:
        assert self._letters is not None
        write = partial(self._letters.bury, message, error)
        what = f"the dead letter of {message.coordinates}"
        if not await self.departures.insist(write, what, message.claim):
            self.leave(message)
            return
        self._run.count("letters")
        if blocks:
            self._block(message, error, has_letter=True)
        else:
            self._settled(message, "dead_lettered")

    def _give_up(self, message: Message, error: BaseException) -> None:
        name, told = self._run.name, for_log(error)
        log_safely(logger, logging.ERROR, _GIVEN_UP, name, message.coordinates, told)
        self._settled(message, "terminated")

    # -- the end of a message ----------------------------------------------------------------------

    def _settled(self, message: Message, fate: Fate) -> None:
        """Settle a message that failed for good."""
        if message.is_unparked and self.replays is not None:
            self._run.count(fate)
            self.replays.finish(message)
        else:
            self.departures.settle(message, fate)

    def leave(self, message: Message) -> None:
        """Leave a message to a later claim."""
        if message.is_unparked and self.replays is not None:
            self.replays.leave(message)
        else:
            self.departures.leave(message)

    def forget(self, messages: Sequence[Message]) -> None:
        """Record messages that were removed with their claims before their turn ended."""
        if self.replays is not None:
            self.replays.forget(messages)

    def _tell(self, message: Message, error: BaseException, action: str) -> None:
        name = self._run.name
        self._run.observers.tell(lambda seen: seen.on_poison(name, message, error, action))

    def look(self) -> None:
        """Park records of parked keys that have arrived."""
        if self.parker is not None and self._schedule.parked:
            self.parker.look()

    def _start(self, message: Message, work: Coroutine[object, object, None]) -> None:
        self.departures.start(message, work, partial(self.leave, message))
