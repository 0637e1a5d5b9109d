"""What the end of a batch does to its messages.

1. Per key, only the acknowledgements before its first other result count. That first message has
   its result; the messages behind it return to their lane untouched, whatever their results are,
   and are handled after it. So a handler can see a message again that it has acknowledged.
2. A batch of several messages whose handler raised is *split*: nothing says which message it was.
   All return, and are tried again in batches of at most half the size, after the first backoff. No
   message uses up an attempt by that. Halving ends at batches of one, whose failures count: among
   n messages each, good or bad, fails at most log2(n) times for others.
3. In an outage (an error that uses up no attempts) a batch is not split, but tried again as a
   whole: one backoff, at the end of which all its keys are ready together. Unless another batch
   began and succeeded meanwhile: then it is no outage of everything, and the batch is split.
4. A batch that was cut because it exceeded its time has raised. One that was cut for a partition
   which this process loses is tried again with its other messages, and is not split.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from ..._core.classify import classified
from ..._core.errors import ErrorClass
from ..._core.say import say
from ..._core.told import for_log
from ..results import Ack, Nak
from .batch_results import results_of
from .former import LaneId, lane_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    from ..._core.retry_policy import RetryPolicy
    from ..commons import Commons
    from ..message import Message
    from ..schedule import Schedule
    from ..settling import Settler
    from .batch_limits import OnMismatch

    Results: TypeAlias = Sequence[tuple[Message, object]]

logger = logging.getLogger("penstock.consumer")

_MISCOUNTED = "%s: %s"
_SPLIT = (
    "%s: a batch of %d messages from %s failed (%s); "
    "they are tried again in batches of at most %d, in %.3g s"
)


class BatchSettler:
    """Settles the messages of batches."""

    def __init__(
        self,
        settler: Settler,
        schedule: Schedule,
        policy: RetryPolicy,
        commons: Commons,
        on_mismatch: OnMismatch,
    ) -> None:
        self._settler = settler
        self._schedule = schedule
        self._policy = policy
        self._clock = commons.clock
        self._counts = commons.counts
        self._name = commons.name
        self._on_mismatch = on_mismatch
        self._succeeded = -math.inf
        """When the youngest batch began that was handled without an exception."""

    def returned(self, batch: Sequence[Message], returned: object, began: float) -> None:
        """Settle the messages of a batch by what its handler returned."""
        results, error = results_of(returned, len(batch), self._on_mismatch)
        if error is not None:
            self._counts.count("miscounted_batches")
            say(logger, logging.ERROR, _MISCOUNTED, self._name, error)
        if any(_is_ack(result) for result in results):
            self._succeeded = max(self._succeeded, began)
        for of_key in _by_lane(zip(batch, results, strict=True)):
            self._settle_key(of_key)

    def raised(self, batch: Sequence[Message], error: BaseException) -> None:
        """Settle the messages of a batch whose handler raised."""
        kind = classified(error)
        if len(batch) == 1:
            self._settler.settle(batch[0], Nak(error=error))
        elif kind is ErrorClass.STOPPED:
            wait = self._policy.backoff(1, error)
            self._return(batch, lambda message: self._settler.try_again(message, wait))
        elif kind in self._policy.uncounted and not self._succeeds_elsewhere(batch):
            wait = self._policy.backoff(1 + max(m.attempts.failed for m in batch), error)
            self._return(batch, lambda message: self._settler.settle(message, Nak(wait, error)))
        else:
            self._split(batch, error)

    def _split(self, batch: Sequence[Message], error: BaseException) -> None:
        most = len(batch) // 2
        wait = self._policy.backoff(1, error)
        self._counts.count("split_batches")
        told = for_log(error)
        first = batch[0].coordinates
        say(logger, logging.WARNING, _SPLIT, self._name, len(batch), first, told, most, wait)
        for message in batch:
            message.claim.limit_batch(message.index, most)
        self._return(batch, lambda message: self._settler.try_again(message, wait))

    def _succeeds_elsewhere(self, batch: Sequence[Message]) -> bool:
        """Whether a batch began and succeeded while this one has been failing."""
        began = [since for m in batch if (since := m.attempts.outage_since) is not None]
        return bool(began) and self._succeeded > min(began)

    # -- keys --------------------------------------------------------------------------------------

    def _settle_key(self, results: Results) -> None:
        """Carry out the results of a key up to the first that is no acknowledgement."""
        place = 0
        while place < len(results) - 1 and _is_ack(results[place][1]):
            self._settler.settle_first(results[place][0], is_acked=True)
            place += 1
        self._put_back([message for message, _ in results[place + 1 :]])
        self._settler.settle(*results[place])

    def _return(self, batch: Sequence[Message], end: Callable[[Message], None]) -> None:
        """Put all messages but the first of each key back, and `end` those."""
        for of_key in _by_lane((message, None) for message in batch):
            self._put_back([message for message, _ in of_key[1:]])
            end(of_key[0][0])

    def _put_back(self, messages: Sequence[Message]) -> None:
        """Return messages of a key to its lane; those of an ending claim to a later one."""
        left = [message for message in messages if not message.claim.is_closing]
        if len(left) < len(messages):
            for message in messages:
                if message.claim.is_closing:
                    self._settler.settle_first(message, is_acked=False)
        if left:
            self._schedule.put_back(left[0].lane_key, left)


def _by_lane(results: Iterable[tuple[Message, object]]) -> Iterable[Results]:
    """The messages and results of each key, in order."""
    lanes: dict[LaneId, list[tuple[Message, object]]] = {}
    for each in results:
        lanes.setdefault(lane_of(each[0]), []).append(each)
    return lanes.values()


def _is_ack(result: object) -> bool:
    return result is None or isinstance(result, Ack)
