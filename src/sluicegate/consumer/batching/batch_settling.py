"""The effect of a batch's end on its messages.

1. Per key, only the acknowledgements before the first other result count. The first other result is
   carried out. The messages behind it return to their lane, regardless of their results, and are
   handled after it. So a handler may see a message again that it has acknowledged.
2. A batch of several messages whose handler raised is *split*, since the failing message is not
   known. All its messages return, and are retried in batches of at most half the size after the
   first backoff. This uses up no attempts. Halving ends at batches of one message, whose failures
   count. In a batch of n messages, each message fails at most log2(n) times because of others.
3. In an outage (an error that uses up no attempts) a batch is not split, but retried as a whole:
   after one backoff, all its keys become ready together. If another batch began and succeeded
   meanwhile, the outage does not affect everything, and the batch is split.
4. A batch cut because of its timeout counts as raised. A batch cut because this process loses a
   partition is not split: its other messages are retried together.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, NamedTuple

from ..._core.classify import classified
from ..._core.errors import ErrorClass
from ..._core.logs import for_log, log_safely
from ..results import Ack, Nak
from .batch_results import results_of
from .former import LaneId, lane_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeGuard

    from ..._core.retry_policy import RetryPolicy
    from ..commons import Commons
    from ..message import Message
    from ..schedule import Schedule
    from ..settling import Settler
    from ..stepping import Sifted
    from .batch_limits import OnMismatch


logger = logging.getLogger("sluicegate.consumer")

_MISCOUNTED = "%s: %s"
_SPLIT = (
    "%s: a batch of %d messages from %s failed (%s); "
    "they are tried again in batches of at most %d, in %.3g s"
)


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
        commons: Commons,
        *,
        on_mismatch: OnMismatch = "terminate",
    ) -> None:
        self._settler = settler
        self._schedule = schedule
        self._policy = policy
        self._clock = commons.clock
        self._counts = commons.counts
        self._name = commons.name
        self._on_mismatch: OnMismatch = on_mismatch
        self._succeeded = -math.inf
        """Start time of the most recent batch that was handled without an exception."""

    def returned(
        self, batch: Sequence[Message], sifted: Sifted, returned: object, began: float
    ) -> None:
        """Settle a batch by the results of its steps and the return value of its handler."""
        results, error = results_of(returned, len(sifted.shown), self._on_mismatch)
        if error is not None:
            self._counts.count("miscounted_batches")
            log_safely(logger, logging.ERROR, _MISCOUNTED, self._name, error)
        if any(_is_ack(result) for result in results):
            self._succeeded = max(self._succeeded, began)
        self._settle(batch, sifted.settled | dict(zip(sifted.shown, results, strict=True)))

    def raised(self, batch: Sequence[Message], sifted: Sifted, error: BaseException) -> None:
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
        self._counts.count("split_batches")
        first, told = shown[0].coordinates, for_log(error)
        log_safely(logger, logging.WARNING, _SPLIT, self._name, len(shown), first, told, most, wait)
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


def _is_ack(result: object) -> TypeGuard[Ack | None]:
    return result is None or isinstance(result, Ack)
