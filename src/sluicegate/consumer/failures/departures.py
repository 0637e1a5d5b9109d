"""Ways in which messages leave the consumer other than by an acknowledgement.

1. A message that leaves frees its key and its place in the window. Either it is settled, so that
   the position may pass it, or it is left to a later claim.
2. A write before that (a dead letter, a parked record) runs in a task, outside the workers. Its
   message keeps its key and its place in the window. A cancelled task leaves its message to a later
   claim. An exception of a task ends the consumer with an error.
3. A failed write is repeated: a failure of the dead letters or of the park store never loses a
   message. It waits, and other keys continue.
4. A source that takes records back gets those with a long backoff, and poison. It ends the claim of
   such a record. Records delivered behind it therefore leave before the key is free, and are
   delivered again behind it.
5. If the claim ends meanwhile for another reason, the message is left: it is delivered again, as
   after any lost claim.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..._core.delivery.pacing import LONGEST_ASKED, asked_wait
from ..._core.errors import ClosedError
from ..._core.logs import for_log, log_safely
from ..operating.report import WaitReason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from ..._core.retry_policy import BackoffFunction
    from ..._core.source import ReturnedAs, SourceClaim, SourceRecord, TakesBack
    from ..lanes.message import Message
    from ..lanes.schedule import Schedule
    from ..progress.claim import Claim
    from ..run import Fate, Run
    from .dead_letters import LetterCircuit

logger = logging.getLogger("sluicegate.consumer")

_FAILED = "%s: %s failed (%s); next try in %.3g s"
_GIVEN_UP = "%s: %s cannot be handled; the source keeps it as %s (%s)"

Call: TypeAlias = "Callable[[SourceClaim, int, SourceRecord], Awaitable[ReturnedAs | None]]"
"""Returns a record of a claim to its source; all records before the given offset are settled."""


class Writing(NamedTuple):
    """A task that writes a message elsewhere, and its purpose."""

    task: asyncio.Task[None]
    reason: WaitReason


class Departures:
    """Writes messages elsewhere in tasks, ends their turns, and wakes the waiting tasks."""

    def __init__(
        self, schedule: Schedule, circuit: LetterCircuit, run: Run, backoff: BackoffFunction
    ) -> None:
        self._schedule = schedule
        self._circuit = circuit
        self._run = run
        self._backoff = backoff
        self._writing: dict[Message, Writing] = {}

    # -- writing in tasks --------------------------------------------------------------------------

    def start(
        self,
        message: Message,
        work: Coroutine[object, object, None],
        cut: Callable[[], None],
        reason: WaitReason = WaitReason.DEAD_LETTER,
    ) -> None:
        """Run `work` for a message; call `cut` if it is cancelled or fails."""
        task = asyncio.get_running_loop().create_task(work, name=f"write {message.coordinates}")
        self._writing[message] = Writing(task, reason)

        def ended(task: asyncio.Task[None]) -> None:
            known = self._writing.get(message)
            if known is not None and known.task is task:  # else another has followed it
                del self._writing[message]
            if task.cancelled():
                cut()
            elif (error := task.exception()) is not None:
                cut()
                self._run.end(error)
            self._run.settled.fire()

        task.add_done_callback(ended)

    async def insist(
        self, call: Callable[[], Awaitable[object]], what: str, *claims: Claim
    ) -> bool:
        """Like the function `insist`, with the backoff of the retry policy."""
        return await insist(self._run, self._backoff, call, what, *claims)

    def cut(self, messages: Iterable[Message]) -> None:
        """Cancel the tasks of these messages."""
        for message in messages:
            if (writing := self._writing.get(message)) is not None:
                writing.task.cancel()

    @property
    def writing(self) -> frozenset[Message]:
        """Messages with an unfinished task; a cancelled one counts until its `cut` has run."""
        return frozenset(
            [message for message, each in self._writing.items() if not _has_ended(each.task)]
        )

    def reason_of(self, message: Message) -> WaitReason:
        """Return the purpose of a message's task."""
        return self._writing[message].reason

    # -- the end of a turn -------------------------------------------------------------------------

    def settle(self, message: Message, fate: Fate) -> None:
        """Settle a message that was not acknowledged; no effect if its claim has ended."""
        claim = message.claim
        settle = claim.settle if fate == "skipped" else claim.settle_unhandled
        if settle(message.index):
            self._run.count(fate)
            self._circuit.leave_out(message.claim)
        else:
            self._run.count("stale")
        self.free(message)

    def leave(self, message: Message) -> None:
        """Leave a message to a later claim."""
        self._run.count("stale" if message.claim.is_closed else "dropped")
        self.free(message)

    def end_returned(self, message: Message, fate: ReturnedAs) -> None:
        """Count a message that its source has taken back, which ended its claim."""
        self._run.count("returned" if fate == "blocked" else fate)
        self.free(message)

    def free(self, message: Message) -> None:
        """Free the key of a message and its place in the window."""
        self._schedule.finish(message)
        self._run.work.fire()
        self._run.room.fire()
        self._run.settled.fire()


def _has_ended(task: asyncio.Task[None]) -> bool:
    """Return whether a task has ended by itself, so that its message is elsewhere."""
    return task.done() and not task.cancelled() and task.exception() is None


async def insist(
    run: Run,
    backoff: BackoffFunction,
    call: Callable[[], Awaitable[object]],
    what: str,
    *claims: Claim,
) -> bool:
    """Call until it succeeds, with a backoff between the calls; `what` names it in the log.

    Returns false if all of the claims had ended before a repetition.
    """
    tries = 0
    while True:
        try:
            await call()
        except (Exception, asyncio.CancelledError) as error:
            if _is_cut(error):
                raise
            tries += 1
            wait = max(backoff(tries, error), asked_wait(error, LONGEST_ASKED) or 0.0)
            log_safely(logger, logging.ERROR, _FAILED, run.name, what, for_log(error), wait)
        else:
            return True
        await run.clock.sleep(wait)
        if all(claim.is_closed for claim in claims):
            return False


def _is_cut(error: BaseException) -> bool:
    """Return whether this task was cancelled; a store may raise `CancelledError` for its own
    reasons.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)


class Returns:
    """Returns messages to a source that takes them back."""

    def __init__(self, source: TakesBack, departures: Departures, run: Run) -> None:
        self._source = source
        self._departures = departures
        self._run = run
        self.after = source.back_after
        """A message with a backoff of at least this many seconds is returned to the source."""

    def put_back(self, message: Message, delay: float) -> None:
        """Return a message that is to be retried later."""
        tries = message.attempts
        put_back = partial(
            self._source.put_back, error=tries.error, delay=delay, tries=tries.counted
        )
        self._start(message, put_back)

    def give_up(self, message: Message, error: BaseException, *, bury: bool = False) -> None:
        """Return a message that cannot be handled."""
        tries = max(1, message.attempts.failed)
        call = partial(self._source.give_up, error=error, tries=tries, bury=bury)
        self._start(message, call, error)

    def _start(self, message: Message, call: Call, error: BaseException | None = None) -> None:
        self._departures.start(
            message,
            self._return(message, call, error),
            partial(self._departures.leave, message),
            WaitReason.GIVING_BACK,
        )

    async def _return(self, message: Message, call: Call, error: BaseException | None) -> None:
        fate: ReturnedAs | None = None

        async def attempt() -> None:
            nonlocal fate
            claim = message.claim
            fate = await call(claim, claim.tracker.position(), message.record)

        try:
            await self._departures.insist(
                attempt, f"giving back {message.coordinates}", message.claim
            )
        except ClosedError:  # the source has closed, and has returned its records
            fate = None
        if fate is None:
            self._departures.leave(message)
            return
        if error is not None:
            name, told = self._run.name, for_log(error)
            log_safely(logger, logging.ERROR, _GIVEN_UP, name, message.coordinates, fate, told)
        self._departures.end_returned(message, fate)
