"""The effect of a result on its message.

1. Settling is synchronous. A write that must be awaited (a dead letter, a parked record) is an
   done in a task: it occupies no worker, and its message keeps its key and its place
   meanwhile.
2. A result in a closed claim only frees the lane: the message is delivered again to the partition's
   next owner. In a closing claim only an acknowledgement counts.
3. A failed message is retried according to the policy: an error of the destination (unavailable,
   throttled, refused, stopped) uses up no attempt. After the last attempt the message is poison.
4. The poison strategy settles a poison message, blocks its key, or parks the key.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from ..._core.checks import in_seconds
from ..._core.classify import classified
from ..._core.delivery.pacing import asked_wait
from ..._core.errors import ErrorClass, TransientError
from ..._core.logs import for_log, log_safely
from ..operating.report import WaitReason
from .results import (
    Ack,
    Incomplete,
    Manual,
    Nak,
    Skip,
    Terminate,
    ToDeadLetter,
    cancelled_by_source,
    no_result,
    reason_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ..._core.retry_policy import RetryPolicy
    from ..failures.poison import PoisonTreatment
    from ..lanes.message import Message
    from ..lanes.schedule import Schedule
    from ..progress.claim import Attempts, Claim
    from ..run import Run
    from .results import Result

logger = logging.getLogger("sluicegate.consumer")

_FAILED = "%s: %s failed (attempt %d, %s); next try in %.3g s"


class CountsInterjections(Protocol):
    """A count of interjections."""

    @property
    def inside(self) -> int:
        """The number of those that have not ended."""
        ...

    @property
    def ended(self) -> int:
        """The number of those that have ended."""
        ...


class StepsOut(Protocol):
    """Interface for events that are completed later."""

    @property
    def interjections(self) -> CountsInterjections:
        """The number of interjections."""
        ...

    @property
    def reads_state(self) -> bool:
        """Whether the state of a claim is read before anything is fetched for it."""
        ...

    def reading_progress(self, claim: Claim) -> str:
        """Return the progress of reading the state, for operators."""
        ...

    def step_out(self, message: Message, result: Incomplete) -> None:
        """Take over an event whose handler has ended; its turn continues."""

    def has_no_room(self, message: Message) -> bool:
        """Return whether an event waits for room for its job."""
        ...

    def job_of(self, message: Message) -> str:
        """Return the place of an event's job, for operators."""
        ...

    def result_of(self, message: Message, result: object) -> object:
        """Return the result to carry out; an interjection, which is not an event, reports its own
        result.
        """
        ...

    def forget(self, messages: Collection[Message]) -> None:
        """Record that these events were left to a later claim before they were complete."""


class Settler:
    """Carries out the results of messages."""

    def __init__(
        self,
        schedule: Schedule,
        poison: PoisonTreatment,
        policy: RetryPolicy,
        run: Run,
        *,
        keeps_key: bool = True,
    ) -> None:
        self._schedule = schedule
        self._poison = poison
        self._policy = policy
        self._run = run
        self._keeps_key = keeps_key
        self._returns = poison.returns
        self._manual: dict[Message, None] = {}  # in order
        self.jobs: StepsOut | None = None
        """Completes events; `None` without `run_events`."""

    def with_jobs(self, jobs: StepsOut) -> None:
        """Allow events to be completed later."""
        self.jobs = jobs

    def settle(self, message: Message, result: object) -> None:
        """Carry out the result of a message whose turn has ended."""
        claim = message.claim
        if self.jobs is not None:
            if isinstance(result, Incomplete) and not claim.is_closed:
                self.jobs.step_out(message, result)
                self._run.settled.fire()
                return
            result = self.jobs.result_of(message, result)
        if claim.is_closing and (claim.is_closed or not _may_end(result)):
            self._leave(message)
        elif result is None or isinstance(result, Ack):
            self._ack(message, result)
        elif isinstance(result, Nak):
            self._failed(
                message, result.error, None if result.delay is None else in_seconds(result.delay)
            )
        elif isinstance(result, ToDeadLetter):
            self._poison.bury(message, reason_of(result))
        elif isinstance(result, Terminate):
            self._poison.take(message, reason_of(result))
        elif isinstance(result, Manual):
            self._wait_for_settle(message)
        else:
            self._poison.take(message, no_result(result))
        self._run.settled.fire()

    def settle_first(self, message: Message, result: Ack | None) -> None:
        """Acknowledge a message while the turn of its key continues."""
        if not self._schedule.acknowledge_first(message):
            self._left(message)
        elif isinstance(result, Skip):
            self._run.count("skipped")

    def leave_first(self, message: Message) -> None:
        """Leave a message to a later claim while the turn of its key continues."""
        self._schedule.leave_first(message)
        self._left(message)

    def try_again(self, message: Message, wait: float) -> None:
        """Retry a message that has not failed itself, after `wait` seconds."""
        if message.claim.is_closing:
            self._poison.leave(message)
            return
        self._schedule.back_off(message, self._run.clock.now() + wait)
        self._run.work.fire()

    def settle_later(self, message: Message, result: Result, *, is_running: bool) -> bool:
        """Settle a message that returned `Manual`, or may do so; return whether the call has an
        effect.
        """
        if is_running and not message.claim.is_closed:
            return message.settle_early(result)
        if message not in self._manual:
            return False
        del self._manual[message]
        is_open = not message.claim.is_closed
        self.settle(message, result)
        self._run.work.fire()
        return is_open

    def cancel_manual(self, message: Message) -> None:
        """End a message that waits for `settle`, which then has no effect, since its source has
        cancelled it; a row in a batcher is written all the same.
        """
        if message.lent_for is WaitReason.MANUAL:
            self.settle_later(message, ToDeadLetter(error=cancelled_by_source()), is_running=False)

    def lend(self, messages: Iterable[Message]) -> None:
        """Let messages wait for an external result, as after `Manual`."""
        self._manual.update(dict.fromkeys(messages))

    def take_back(self, message: Message) -> bool:
        """Record the result for a lent message; return false if the message was left meanwhile."""
        manual = self._manual
        if message not in manual:
            return False
        del manual[message]
        return True

    def has_lent(self, messages: Iterable[Message]) -> bool:
        """Return whether none of these lent messages was left meanwhile."""
        return all(map(self._manual.__contains__, messages))

    def take_back_all(self, messages: Iterable[Message]) -> None:
        """Like `take_back`, for messages that were not left."""
        for message in messages:
            del self._manual[message]

    def _wait_for_settle(self, message: Message) -> None:
        """Carry out the result of `settle` now if it was called before the handler ended."""
        early = message.early
        if early is None or isinstance(early, Manual):
            self._manual[message] = None
        else:
            self.settle(message, early)

    @property
    def manual(self) -> tuple[Message, ...]:
        """The messages that wait for `settle`."""
        return tuple(self._manual)

    @property
    def outside(self) -> tuple[Message, ...]:
        """The messages that wait for `settle`, for a job, or for their turn to be finalised."""
        completed = self._schedule.completed
        return *self._manual, *completed.out, *completed.waiting

    def drop_manual(self, messages: set[Message]) -> None:
        """Leave these messages, which wait outside of turns, to a later claim."""
        left = [message for message in self.outside if message in messages]
        if self.jobs is not None:
            self.jobs.forget(left)
        for message in left:
            self._manual.pop(message, None)
            self._poison.leave(message)

    def leave(self, message: Message) -> None:
        """Leave a message to a later claim."""
        self._poison.leave(message)

    def leave_after(self, message: Message) -> None:
        """Leave the later events of this one's lane to a later claim, which also handles this one
        again.
        """
        gone = self._schedule.completed.drop_after(message)
        self._schedule.window.give(len(gone), sum([each.size for each in gone]))
        self._run.count("dropped", len(gone))
        self.forget(gone)
        claim, key = message.claim, message.lane_key
        later = [each for each in self.outside if each.claim is claim and each.lane_key == key]
        self.drop_manual({each for each in later if each.index > message.index})

    def _leave(self, message: Message) -> None:
        """Leave a message whose turn has ended and whose claim is ending."""
        if self.jobs is None:
            self._poison.leave(message)
            return
        if message.finalise is not None and not message.claim.is_closed:
            self.leave_after(message)
        self.jobs.forget([message])
        self._poison.leave(message)

    def forget(self, messages: Sequence[Message]) -> None:
        """Record messages that were removed with their claims before their turn ended."""
        for message in messages:
            self._manual.pop(message, None)
        self._poison.forget(messages)
        if self.jobs is not None:
            self.jobs.forget(messages)

    def _ack(self, message: Message, result: Ack | None) -> None:
        if message.is_unparked:
            self._poison.finish_replay(message)
        elif not self._schedule.acknowledge(message):
            self._schedule.finish(message)
        elif isinstance(result, Skip):
            self._run.count("skipped")

    def _left(self, message: Message) -> None:
        self._run.count("stale" if message.claim.is_closed else "dropped")

    def _failed(self, message: Message, error: BaseException | None, delay: float | None) -> None:
        self._run.count("naks")
        error = error or TransientError("the handler did not acknowledge the message")
        if message.offset in message.claim.cancelled:
            self._poison.bury(message, error)
            return
        kind = classified(error)
        if kind is ErrorClass.STOPPED:  # of a destination's writer, or of a cancelled batch
            kind = ErrorClass.UNAVAILABLE
        now = self._run.clock.now()
        counts = kind not in self._policy.uncounted
        tries = message.attempts.and_one(now, error, counts=counts)
        message.claim.attempts[message.index] = tries
        wait = self._wait_after(tries, error) if delay is None else delay
        if self._is_over(kind, tries, now + wait):
            self._poison.take(message, error)
            return
        is_own = counts or delay is not None  # an outage is waited for here, where it is reported
        if self._returns is not None and is_own and wait >= self._returns.after:
            self._returns.put_back(message, wait)
        else:
            keeps_key = self._keeps_key or message.is_unparked
            self._schedule.back_off(message, now + wait, keeps_key=keeps_key)
            self._run.work.fire()
        log_safely(logger, logging.DEBUG, _FAILED, self._run.name, message.coordinates, tries.failed, for_log(error), wait)  # fmt: skip

    def _wait_after(self, tries: Attempts, error: BaseException) -> float:
        """Return the policy's backoff, or the longer wait requested by the destination."""
        asked = asked_wait(error, in_seconds(self._policy.max_retry_after))
        return max(self._policy.backoff(tries.failed, error), asked or 0.0)

    def _is_over(self, kind: ErrorClass, tries: Attempts, until: float) -> bool:
        """Return whether there is no next attempt because attempts or time are used up."""
        policy = self._policy
        if policy.is_over(kind, tries.counted):
            return True
        if tries.outage_since is not None:
            limit, since = policy.give_up_after, tries.outage_since
        else:
            limit, since = policy.max_seconds, tries.first_at + tries.outages
        return limit is not None and until - since > in_seconds(limit)


def _may_end(result: object) -> bool:
    """Return whether a result counts in a claim that is closing."""
    return result is None or isinstance(result, (Ack, Incomplete))
