"""Work on messages in batches; `concurrency` is the number of batches that run concurrently.

1. Each search for work lets the batch former take the ready messages. The engine's timekeeper
   searches when a batch becomes due.
2. Per key, only the acknowledgements before the first other result count. The first other result is
   carried out. The messages behind it return to their lane, regardless of their results, and are
   handled after it. So a handler may see a message again that it has acknowledged.
3. A batch of several messages whose handler raised is *split*, since the failing message is not
   known. All its messages return, and are retried in batches of at most half the size after the
   first backoff. This uses up no attempts. Halving ends at batches of one message, whose failures
   count. In a batch of n messages, each message fails at most log2(n) times because of others.
4. In an outage (an error that uses up no attempts) a batch is not split, but retried as a whole:
   after one backoff, all its keys become ready together. If another batch began and succeeded
   meanwhile, the outage does not affect everything, and the batch is split.
5. A batch cut because of its timeout counts as raised. A batch cut because this process loses a
   partition is not split: its other messages are retried together.

The return value of a handler becomes one result per message:

| returned | a message | `on_mismatch="retry"` |
|---|---|---|
| `None` | is acknowledged | |
| a list or tuple | has the result at its position | |
| a shorter one | without a result is poison | has failed |
| a longer one | as above; extra results are ignored, counted and logged | |
| anything else | is poison | has failed |

A poison message's error is a `BatchResultCountError`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from ..._core.classify import classified
from ..._core.errors import ErrorClass, TransientError
from ..._core.loading import NotLoaded, called_again
from ..._core.logs import for_log, log_safely
from ..lanes.batches import LaneId, lane_of
from .results import ACK, Ack, BatchResultCountError, Nak, Terminate, of_raised
from .steps import Sifted, sift
from .workers import Slot, is_closed, result_of_cut

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import TypeGuard

    from ..._core.retry_policy import RetryPolicy
    from ..lanes.batches import BatchFormer, OnMismatch
    from ..lanes.message import Message
    from ..lanes.schedule import Schedule
    from ..run import Run
    from .results import Result
    from .settling import Settler
    from .steps import Step
    from .workers import Workers


BatchFunction: TypeAlias = "Callable[[list[Message]], Awaitable[object]]"

logger = logging.getLogger("sluicegate.consumer")
_MISCOUNTED = "%s: %s"
_SPLIT = (
    "%s: a batch of %d messages from %s failed (%s); "
    "they are tried again in batches of at most %d, in %.3g s"
)


class BatchMessages:
    """Work that handles messages in batches."""

    def __init__(
        self,
        schedule: Schedule,
        former: BatchFormer,
        settler: BatchSettler,
        workers: Workers,
        run: Run,
        *,
        handler: BatchFunction,
        steps: Sequence[Step],
    ) -> None:
        self.schedule = schedule
        self.settler = settler
        self.workers = workers
        self.run = run
        self.handler = handler
        self.steps = steps
        self._window = schedule.window
        self._former = former
        self._running = 0

    @property
    def is_waiting(self) -> bool:
        """Whether a batch is due, after the ready messages have joined batches."""
        now = self.run.clock.now()
        if self._former.take_in(now):
            self.run.work.fire()
        return self._former.is_due(now, is_idle=not self._running)

    @property
    def is_stuck(self) -> bool:
        """Whether nothing continues unless an operator unblocks a message."""
        return self.schedule.is_stuck

    def begin(self) -> list[Message] | None:
        """Take and return the batch that is due, if any, to be handled now.

        The timekeeper waits for the first batch only, so it is notified of the next one.
        """
        batch = None
        if self.is_waiting:
            batch = self._former.take(self.run.clock.now(), is_idle=not self._running)
            self._running += batch is not None
        if self._former.next_due is not None:
            self.run.work.fire()
        return batch

    def end(self) -> None:
        """Record that a batch is settled, and notify the waiting tasks."""
        self._running -= 1
        run = self.run
        run.count("batches")
        run.settled.fire()
        if run.room.waiters and self._window.has_resumed:
            run.room.fire()

    def make_worker(self) -> Slot:
        """Create a worker of batches."""
        return BatchWorker(self)


class BatchWorker(Slot):
    """A worker that handles batches one after another."""

    def __init__(self, shared: BatchMessages) -> None:
        super().__init__()
        self._shared = shared

    async def work(self) -> None:
        """Handle batches that are due; rest when there are none."""
        shared = self._shared
        workers, sleep = shared.workers, shared.run.clock.sleep
        task = asyncio.current_task()
        assert task is not None
        workers.mark_running()
        while True:
            batch = shared.begin()
            if batch is None:
                if not await workers.rest():
                    return
                continue
            workers.wake()
            try:
                await self._handle(batch, task)
            finally:
                shared.end()
            await sleep(0)  # in case the handler does not suspend

    async def _handle(self, batch: list[Message], task: asyncio.Task[object]) -> None:
        shared = self._shared
        began = shared.run.clock.now()
        sifted, returned = Sifted(list(batch), {}), None
        error: BaseException | None = None
        self.running = batch
        try:
            if shared.steps or shared.schedule.has_undecodable:
                sifted = await sift(shared.steps, batch)
            if sifted.shown:
                try:
                    returned = await shared.handler(list(sifted.shown))
                except NotLoaded as missing:
                    returned = await called_again(missing, shared.handler, list(sifted.shown))
        except GeneratorExit as raised:
            if is_closed(task):
                raise
            error = raised
        except BaseException as raised:  # a failed try; it goes to logs and dead letters
            error = of_raised(raised)
            shared.workers.end_on_exit(raised)
        self.running, self.ended = None, batch
        is_cancelled = task.cancelling() > 0  # by a cut, or by the handler itself
        if is_cancelled:
            error = error_of_cut(self.take_cut(), returned, error)
        if error is None or not sifted.shown:
            shared.settler.settle_results(batch, sifted, returned, began)
        else:
            shared.settler.settle_error(batch, sifted, error)
        if is_cancelled:
            await self.settle_down()


def error_of_cut(
    cut_by: BaseException | None, returned: object, error: BaseException | None
) -> BaseException | None:
    """Return the error of a batch whose worker was cancelled; like `result_of_cut` for one
    message.
    """
    result = result_of_cut(cut_by, None if error is None else Nak(error=error))
    if error is None and returned is not None:
        return None
    return result.error if isinstance(result, Nak) else None


class _Return(NamedTuple):
    """The message is retried after `wait` seconds, without having failed itself."""

    wait: float


class BatchSettler:
    """Settles the messages of batches."""

    def __init__(
        self,
        settler: Settler,
        schedule: Schedule,
        policy: RetryPolicy,
        run: Run,
        *,
        on_mismatch: OnMismatch = "terminate",
    ) -> None:
        self._settler = settler
        self._schedule = schedule
        self._policy = policy
        self._run = run
        self._on_mismatch: OnMismatch = on_mismatch
        self._succeeded = -math.inf
        """Start time of the most recent batch that was handled without an exception."""

    def settle_results(
        self, batch: Sequence[Message], sifted: Sifted, returned: object, began: float
    ) -> None:
        """Settle a batch by the results of its steps and the return value of its handler."""
        results, error = results_of(returned, len(sifted.shown), self._on_mismatch)
        if error is not None:
            self._run.count("miscounted_batches")
            log_safely(logger, logging.ERROR, _MISCOUNTED, self._run.name, error)
        if any(_is_ack(result) for result in results):
            self._succeeded = max(self._succeeded, began)
        is_plain = len(results) == len(batch) and _PLAIN.issuperset(map(type, results))
        if is_plain and self._schedule.acknowledge_all(batch):
            return  # the usual case
        self._settle(batch, sifted.settled | dict(zip(sifted.shown, results, strict=True)))

    def settle_error(self, batch: Sequence[Message], sifted: Sifted, error: BaseException) -> None:
        """Settle a batch by the results of its steps and the exception of its handler."""
        failed = self._failed(sifted.shown, error)
        self._settle(batch, dict.fromkeys(sifted.shown, failed) | sifted.settled)

    # -- exceptions --------------------------------------------------------------------------------

    def _failed(self, shown: Sequence[Message], error: BaseException) -> object:
        """Return the result of each message for which the handler raised."""
        kind = classified(error)
        if len(shown) == 1:
            return Nak(error=error)
        if kind is ErrorClass.STOPPED:
            return _Return(self._policy.backoff(1, error))
        if kind in self._policy.uncounted and not self._succeeds_elsewhere(shown):
            tries = 1 + max(message.attempts.failed for message in shown)
            return Nak(self._policy.backoff(tries, error), error)
        return self._split(shown, error)

    def _split(self, shown: Sequence[Message], error: BaseException) -> _Return:
        most = len(shown) // 2
        wait = self._policy.backoff(1, error)
        self._run.count("split_batches")
        first, told = shown[0].coordinates, for_log(error)
        log_safely(
            logger, logging.WARNING, _SPLIT, self._run.name, len(shown), first, told, most, wait
        )
        for message in shown:
            message.claim.limit_batch(message.index, most)
        return _Return(wait)

    def _succeeds_elsewhere(self, shown: Sequence[Message]) -> bool:
        """Return whether another batch began and succeeded while this one has been failing."""
        began = [since for m in shown if (since := m.attempts.outage_since) is not None]
        return bool(began) and self._succeeded > min(began)

    # -- keys --------------------------------------------------------------------------------------

    def _settle(self, batch: Sequence[Message], results: Mapping[Message, object]) -> None:
        lanes: dict[LaneId, list[Message]] = {}
        for message in batch:
            lanes.setdefault(lane_of(message), []).append(message)
        for messages in lanes.values():
            self._settle_key(messages, results)

    def _settle_key(self, messages: Sequence[Message], results: Mapping[Message, object]) -> None:
        """Carry out the results of a key up to the first that is not an acknowledgement."""
        place, last = 0, len(messages) - 1
        result = results[messages[0]]
        while place < last and _is_ack(result):
            self._settler.settle_first(messages[place], result)
            place += 1
            result = results[messages[place]]
        if place < last:
            self._put_back(messages[place + 1 :])
        self._end(messages[place], result)

    def _end(self, message: Message, result: object) -> None:
        """Carry out the result that ends the turn of a key."""
        if (result is None or type(result) is Ack) and self._schedule.acknowledge(message):
            return  # the usual case, as in `MessageWorker`
        if isinstance(result, _Return):
            self._settler.try_again(message, result.wait)
        else:
            self._settler.settle(message, result)

    def _put_back(self, messages: Sequence[Message]) -> None:
        """Return messages of a key to its lane, or to a later claim if their claim is ending."""
        left = [message for message in messages if not message.claim.is_closing]
        if left:
            self._schedule.put_back(left[0].lane_key, left)
        if len(left) < len(messages):
            for message in messages:
                if message.claim.is_closing:
                    self._settler.leave_first(message)


_PLAIN = frozenset({type(None), Ack})
"""The types of results that only acknowledge."""


def _is_ack(result: object) -> TypeGuard[Ack | None]:
    return result is None or isinstance(result, Ack)


class BatchResults(NamedTuple):
    """One result per message, and the error of a wrong count."""

    results: Sequence[object]
    error: BatchResultCountError | None = None


def results_of(returned: object, count: int, on_mismatch: OnMismatch) -> BatchResults:
    """Return the results of a batch of `count` messages."""
    if returned is None:
        return BatchResults([ACK] * count)
    if not isinstance(returned, (list, tuple)):
        kind = type(returned).__name__
        error = BatchResultCountError(
            f"a batch handler returned a {kind}; return None or a list of results"
        )
        return BatchResults([_missing(error, on_mismatch)] * count, error)
    answers = cast("Sequence[object]", returned)
    given = len(answers)
    if given == count:
        return BatchResults(answers)
    error = BatchResultCountError(
        f"a batch handler returned {given} results for {count} messages; return one for each"
    )
    missing = [_missing(error, on_mismatch)] * (count - given)
    return BatchResults([*answers[:count], *missing], error)


def _missing(error: BatchResultCountError, on_mismatch: OnMismatch) -> Result:
    if on_mismatch == "terminate":
        return Terminate(error=error)
    return Nak(error=TransientError(str(error)))
