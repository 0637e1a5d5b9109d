"""`send`: the path of every write to a sink, by the batcher or by another sink.

1. Settled items are not sent again; an empty batch is not written. If another sink has settled
   them, the batch is refused (see below).
2. Successes are settled before `send` returns, so the caller handles only failures.
3. An exception becomes an error for every item that is still unsettled.
4. An answer that does not fit its batch is a `ResultMismatch` for every unsettled item of the
   write, regardless of what else the sink raises or returns. Items in doubt after an unreported
   mismatch are not sent.
5. Cancellation passes through, and items at the destination are marked as possibly applied. A
   foreign exception raised instead of it means the same; only our own error classes are trusted
   then.
6. After a cut nothing is sent, even if a sink has swallowed its cancellation.
7. Withdrawn items are not sent; see `order/left_out.py`.
8. Unreadable items of a batch of columns are refused when a sink first reads one of them; the
   others are resent without them.

A batch is sent to one sink; another one is refused, since it would not get the settled items:

1. Omitting settled items is right for a retry of the same sink, and for items that a
   decorator has settled itself; any other sink would silently get less than the batch.
2. So a delivery stores the sinks whose writes have settled items of it (`settled_by`), those of a
   stack from the inside out. An item that is settled otherwise says nothing about sinks.
3. During a transaction its items belong to it: another transaction could commit, or be rolled
   back, with outcomes that are final only at the end of the first. After its commit the items are
   settled by the transaction's sink, so that another transaction of that sink omits them.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

from .arrow import UnreadableRows
from .batch import by_roots
from .checks import shown
from .classify import caused
from .delivery.delivery import HoldingSink
from .errors import ConfigError, ResultMismatch, SinkError, UnknownOutcomeError
from .logs import for_log
from .order.left_out import stopped_behind, withdrawn_among
from .outcome import Outcome
from .runtime.cuts import take_back
from .sink import WriteResult, capabilities_of, checked_result
from .text import repr_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .batch import Batch
    from .delivery.delivery import Delivery
    from .sink import Sink


T = TypeVar("T")

logger = logging.getLogger("sluicegate.send")

_OTHER_SINK = (
    "send({sink}, batch): {settled} of its {size} items are settled by another sink "
    "({other}), and would not be written to this one; to write items to several sinks, use FanOut "
    "or a batch for each, and to send only the failed ones, batch.pick(errors)"
)
_IN_TRANSACTION = (
    "send({sink}, batch): the batch was sent in another transaction that has not ended, so its "
    "outcomes are not final; end that one first, or make a second batch"
)


async def send(sink: Sink[T], batch: Batch[T]) -> dict[int, BaseException]:
    """Write `batch` to `sink`; return the errors of failed items by this batch's indices.

    Items that are settled already are not sent again, so the same call may be repeated after a
    failure. Send a batch to one sink at a time: of two concurrent calls, one may not report errors.

    Raises `ConfigError` if another sink has settled items of the batch, since this one would not
    get them: for a second destination use `FanOut` or a second batch, and to send only failed items
    to it, `batch.pick(errors)`. Also raises it if the batch was sent in a transaction that is still
    open, and `sink` is another one. Raises `CancelledError` if the caller is cancelled, or the
    delivery is closed. Suspends.
    """
    delivery = batch.delivery
    if delivery.held is not None:
        check_holder(sink, delivery.held.holder)
    left = delivery.states.left
    if not delivery.states.is_fresh and len(indices := batch.unsettled()) < len(batch):
        check_settled_by(sink, delivery)
        return await _send_part(sink, batch, indices)
    roots = batch.roots()
    if not roots and not len(batch):
        return {}
    task = asyncio.current_task()
    if task is None or task.cancelling():  # and a sink has swallowed it
        raise asyncio.CancelledError
    if delivery.distrusts and (doubt := delivery.distrusted(roots)) is not None:
        return _mismatched(batch, doubt)
    if delivery.withdrawn is not None and (gone := withdrawn_among(batch)):
        return await _without_withdrawn(sink, batch, gone)
    delivery.begin(roots)
    errors: dict[int, BaseException]
    try:
        written = sink.write(batch)
        if type(written) is not CoroutineType:
            _check_awaitable(sink, written)
        result = await written
        if result is None and delivery.states.is_fresh and not delivery.distrusts:
            delivery.settle(roots, Outcome.DELIVERED)
            return {}
        errors = _book(batch, roots, result)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        delivery.interrupted(roots)
        raise
    except asyncio.CancelledError as cancelled:
        if task.cancelling():
            delivery.interrupted(roots)
            raise
        message = "the sink raised CancelledError although its write was not cancelled"
        error = caused(UnknownOutcomeError(message), cancelled)
        errors = dict.fromkeys(batch.unsettled(), error)
    except UnreadableRows as error:
        return await _without_unreadable(sink, batch, error)
    except BaseException as error:  # handed to the caller, one per unsettled item
        errors = _raised(batch, task, error)
    finally:
        if delivery.states.left < left:
            delivery.note_settled_by(sink)
    if delivery.distrusts and (doubt := delivery.distrusted(roots)) is not None:
        return _mismatched(batch, doubt)
    if errors:
        errors = _failed(batch, errors)
    try:
        return errors
    finally:
        del errors  # an error's traceback holds this frame: without a cycle it is freed immediately


async def _send_part(
    sink: Sink[T], batch: Batch[T], indices: Sequence[int]
) -> dict[int, BaseException]:
    """Send the items at `indices`; return their errors by the indices of `batch`."""
    found = await send(sink, batch.pick(indices)) if indices else {}
    return {indices[i]: error for i, error in found.items()}


def _raised(
    batch: Batch[T], task: asyncio.Task[Any], error: BaseException
) -> dict[int, BaseException]:
    """Return the errors of a write that has raised; report one that belongs to no item."""
    take_back(task, error)
    is_trusted = isinstance(error, SinkError) or not task.cancelling()
    raised = error if is_trusted else _of_a_cut(error)
    errors = dict.fromkeys(batch.unsettled(), raised)
    if errors or isinstance(error, SinkError):
        return errors
    if batch.delivery.closed:
        batch.delivery.heard([raised])  # too late: the items already have their verdicts
    elif isinstance(error, ConfigError):
        logger.error("%s: the items of a batch are settled, but %s", batch.name, for_log(error))
    return errors


async def _without_withdrawn(
    sink: Sink[T], batch: Batch[T], gone: dict[int, BaseException]
) -> dict[int, BaseException]:
    """Send the items that are not withdrawn."""
    batch.delivery.left_out(by_roots(batch, gone))
    left = [index for index in range(len(batch)) if index not in gone]
    return gone | await _send_part(sink, batch, left)


def _failed(batch: Batch[T], errors: dict[int, BaseException]) -> dict[int, BaseException]:
    """Record the errors of a write; return them, those of withdrawn items replaced."""
    batch.delivery.failed(by_roots(batch, errors))
    if batch.delivery.withdrawn is None:
        return errors
    gone = {i: error for i, error in withdrawn_among(batch, wholly=True).items() if i in errors}
    if gone:
        batch.delivery.left_out(by_roots(batch, gone))
    return {**errors, **gone}


async def _without_unreadable(
    sink: Sink[T], batch: Batch[T], raised: UnreadableRows
) -> dict[int, BaseException]:
    """Refuse the unreadable items and send the others.

    No item was sent before, since all are created together. A sink that omits the items behind a
    failed one of a key does not see these failures, so the items behind them are omitted here.
    """
    left, bad = batch.unsettled(), batch.unreadable()
    errors: dict[int, BaseException] = {i: bad.get(i, raised) for i in left if i in bad or not bad}
    if capabilities_of(sink).key_prefix_safe:
        errors.update(stopped_behind(batch.keys, errors))
    batch.delivery.failed(by_roots(batch, errors))
    return errors | await _send_part(sink, batch, [i for i in left if i not in errors])


def _mismatched(batch: Batch[T], doubt: ResultMismatch) -> dict[int, BaseException]:
    """Fail every unsettled item with the error of an invalid `settle`, current or earlier."""
    delivery = batch.delivery
    errors: dict[int, BaseException] = dict.fromkeys(batch.unsettled(), doubt)
    roots = batch.roots(errors)
    delivery.failed(dict.fromkeys(roots, doubt))
    delivery.forget_distrust(batch.roots())
    return errors


def _check_awaitable(sink: Sink[T], answer: object) -> None:
    if not inspect.isawaitable(answer):
        given = f"{shown(sink)}.write is not an async function (it returned {shown(answer)})"
        raise ResultMismatch(f"{given}; make it `async def write(self, batch)`")


def _of_a_cut(error: BaseException) -> UnknownOutcomeError:
    """Return the unknown outcome of a cancelled write whose client raised another error."""
    text = "the write was cut off, which ended in"
    made = UnknownOutcomeError(f"{text} {repr_of(error)}")
    return caused(made, error, summary=f"{text} {for_log(error)}")


def _book(batch: Batch[T], roots: Sequence[int], result: object) -> dict[int, BaseException]:
    """Settle successes; return the failures. Raises `ResultMismatch` before booking anything."""
    delivery = batch.delivery
    if delivery.distrusts and (doubt := delivery.distrusted(roots)) is not None:
        raise doubt
    if result is None:
        if delivery.left:  # an inner sink may have booked all
            batch.book(batch.unsettled(), Outcome.DELIVERED)
        return {}
    if not isinstance(result, WriteResult):
        given = f"a sink returned {shown(result)}"
        rule = "expected None (all delivered) or a WriteResult; raise an error if the write failed"
        raise ResultMismatch(f"{given}; {rule}")
    errors, outcomes, details = checked_result(result, batch)
    for outcome in dict.fromkeys(outcomes.values()):
        indices = [index for index, explicit in outcomes.items() if explicit is outcome]
        batch.book(indices, outcome, details)
    unsettled = batch.unsettled()
    if not errors:
        batch.book(unsettled, Outcome.DELIVERED, details)
        return {}
    batch.book([i for i in unsettled if i not in errors], Outcome.DELIVERED, details)
    return {i: errors[i] for i in unsettled if i in errors}


def check_holder(sink: object, holder: HoldingSink) -> None:
    """Raise `ConfigError` if `sink` is another transaction than the one that holds the outcomes."""
    if holder is not sink and isinstance(sink, HoldingSink):
        raise ConfigError(_IN_TRANSACTION.format(sink=shown(sink)))


def check_settled_by(sink: object, delivery: Delivery) -> None:
    """Raise `ConfigError` if items are settled by other sinks only. Call it if some are settled."""
    known = [reference() for reference in delivery.settled_by]
    if not known or any(one is sink for one in known):
        return
    if delivery.held is not None:
        raise ConfigError(_IN_TRANSACTION.format(sink=shown(sink)))
    if isinstance(sink, HoldingSink) and any(one is sink.destination for one in known):
        return
    size = len(delivery.states)
    settled = size - delivery.left
    other = "which is gone" if known[-1] is None else shown(known[-1])
    raise ConfigError(_OTHER_SINK.format(sink=shown(sink), settled=settled, size=size, other=other))
