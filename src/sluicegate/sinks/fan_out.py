"""Each batch is written to several sinks.

1. Each branch has its own delivery: an item is settled when every required branch has settled it,
   and the worst outcome decides.
2. Branches are written concurrently; each has its own backoff and flush timeout.
3. A `best_effort` branch never fails an item. After the required branches, it gets one last attempt.
4. No transaction spans two destinations. Retries belong in each branch: a retry around the fan-out
   would repeat the successful writes of other branches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, cast

from .._core import checks
from .._core.keywords import known_arguments
from .._core.opening import Openable, opened
from .._core.public import publish
from .._core.send import send
from .._core.sink import Capabilities, WriteResult, capabilities_of, repeatable_of_all
from .._core.stacking import as_sink
from .concurrency import ConcurrentWrite, write_concurrently

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from contextlib import AsyncExitStack

    from .._core.batch import Batch
    from .._core.delivery.fork import Fork
    from .._core.outcome import Outcome
    from .._core.sink import Sink, SinkLike


T = TypeVar("T")

Mode = Literal["all", "parallel", "sequential"]
_MODES: tuple[Mode, ...] = ("all", "parallel", "sequential")

logger = logging.getLogger("sluicegate.fan_out")


@known_arguments()
class FanOut(Openable, Generic[T]):
    """Writes every batch to each of `sinks`.

    Args:
        sinks: the required branches, sinks or functions of a batch. They are named "1", "2", ... in
            counts and write keys.
        best_effort: branches that are attempted and counted, but never fail an item; their numbers
            follow.
        mode: `all` (default) writes to every branch concurrently, regardless of the others;
            `parallel` does too, but cancels the others when a required branch fails as a whole,
            which leaves their started writes unknown; `sequential` writes to one branch after
            another, and an item that failed in one is not sent to the next.

    Put a `Retry` in each branch that needs one; around a `FanOut` it is refused. If one branch has
    an item and another refuses it, the refusal decides (`rejected`, or the dead letters). An item
    that was cut off in any branch, or is unsent in one branch only, is unknown.

    Raises `ConfigError` without a required branch, and for a bad argument.

    Examples:
        >>> import asyncio
        >>> from sluicegate import FanOut, RowBatch, send
        >>> from sluicegate.sinks import MemorySink
        >>> table, index = MemorySink(), MemorySink()
        >>> asyncio.run(send(FanOut(table, index), RowBatch([1, 2])))
        {}
        >>> table.items, index.items
        ([1, 2], [1, 2])
    """

    refuses_retry = (
        "would resend items that a branch has already written; put the Retry in each branch: "
        "FanOut(stack(a, Retry()), stack(b, Retry()))"
    )
    refuses_isolate = (
        "would resend items that a branch has already written; put the Isolate in each branch: "
        "FanOut(stack(a, Isolate()), stack(b, Isolate()))"
    )

    refuses_transaction = (
        "its branches are separate destinations, and no transaction spans two; write to each in "
        "its own transaction, or write to one and update the others from it"
    )

    def __init__(
        self, *sinks: SinkLike[T], best_effort: Iterable[SinkLike[T]] = (), mode: Mode = "all"
    ) -> None:
        if not sinks:
            raise checks.bad("sinks", sinks, "must contain at least one required sink")
        given = cast("object", best_effort)
        if (
            callable(getattr(given, "write", None))
            or isinstance(given, str)
            or not isinstance(given, Iterable)
        ):
            raise checks.bad("best_effort", given, "must be a list of sinks: best_effort=[sink]")
        self._mode: Mode = checks.choice("mode", mode, _MODES)
        first = [as_sink(sink, f"sinks[{place}]") for place, sink in enumerate(sinks)]
        extra = [as_sink(sink, f"best_effort[{place}]") for place, sink in enumerate(best_effort)]
        self.inners: tuple[Sink[T], ...] = (*first, *extra)
        self._branches = {str(number): sink for number, sink in enumerate(self.inners, 1)}
        self._required = tuple(self._branches)[: len(sinks)]
        self._extra = tuple(self._branches)[len(sinks) :]
        self._counts: dict[str, dict[Outcome, int]] = {}

    @property
    def counts(self) -> Mapping[str, Mapping[Outcome, int]]:
        """Outcomes per branch since it was last opened. `unsent` counts items never sent to it."""
        return {label: dict(self._counts.get(label, {})) for label in self._branches}

    @property
    def capabilities(self) -> Capabilities:
        """The common promises of all branches, without transactions, and without order after a
        failure, which the other branches do not see.
        """
        known = [capabilities_of(sink) for sink in self.inners]
        bounds = [one.max_concurrency for one in known if one.max_concurrency is not None]
        return Capabilities(
            idempotent=all(one.idempotent for one in known),
            repeatable=repeatable_of_all(known),
            columnar=all(one.columnar for one in known),
            max_concurrency=min(bounds, default=None),
        )

    async def _open(self, stack: AsyncExitStack) -> None:
        self._counts = {}
        for sink in self.inners:
            await stack.enter_async_context(opened(sink))

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        """Write to every branch; suspends until all have ended. Cancellation reaches each of them."""
        fork = batch.fork(dict.fromkeys(self._branches, _as_it_is), best_effort=self._extra)
        with fork as ways:
            try:
                await _Spread(self._branches, self._groups, self._mode, fork, ways).run(batch)
            finally:
                self._count(batch, ways)
        errors = {index: fork.error(batch.roots((index,))[0]) for index in batch.unsettled()}
        return WriteResult.failed(batch, errors) if errors else None

    @property
    def _groups(self) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
        """The concurrent groups of branches, each written in sequence: required and best-effort."""
        required: list[tuple[str, ...]] = (
            [self._required]
            if self._mode == "sequential"
            else [(label,) for label in self._required]
        )
        return required, [(label,) for label in self._extra]

    def _count(self, batch: Batch[T], ways: Mapping[str, Batch[T]]) -> None:
        for label, way in ways.items():
            ended = way.delivery.verdicts(batch.roots())
            mine = self._counts.setdefault(label, {})
            for outcome, number in ended.items():
                mine[outcome] = mine.get(outcome, 0) + number
            bad = {
                outcome.value: number for outcome, number in ended.items() if not outcome.is_safe
            }
            if bad and label in self._extra:
                error = next(
                    (e for root in batch.roots() if (e := way.delivery.error(root)) is not None),
                    None,
                )
                logger.warning(
                    "best-effort branch %s of batch %s (%r): %s; the first error: %r",
                    label,
                    batch.id,
                    self._branches[label],
                    bad,
                    error,
                )

    def __getstate__(self) -> dict[str, object]:
        """The state without the counts."""
        return {**super().__getstate__(), "_counts": {}}

    def __repr__(self) -> str:
        return f"FanOut({', '.join(map(repr, self.inners))})"


class _Spread(Generic[T]):
    """The writes of one batch to all branches."""

    def __init__(
        self,
        sinks: Mapping[str, Sink[T]],
        groups: tuple[list[tuple[str, ...]], list[tuple[str, ...]]],
        mode: Mode,
        fork: Fork[Batch[T]],
        ways: Mapping[str, Batch[T]],
    ) -> None:
        required, extra = groups
        self._sinks = sinks
        self._required = range(len(required))
        self._groups = [*required, *extra]
        self._cancels = mode == "parallel"
        self._fork = fork
        self._ways = ways
        self._ended: set[int] = set()

    async def run(self, batch: Batch[T]) -> None:
        """Write every group of branches."""
        writes = [
            ConcurrentWrite(
                [self._ways[label].delivery for label in group], partial(self._write_group, group)
            )
            for group in self._groups
        ]
        await write_concurrently(batch.delivery, writes, self._group_ended)

    async def _write_group(self, group: tuple[str, ...]) -> Mapping[int, BaseException]:
        """Write one branch after another; an item that failed in one is not sent to the next."""
        failed: dict[int, BaseException] = {}
        for place, label in enumerate(group):
            way = self._ways[label]
            if place:
                way.delivery.new_stretch()
            good = [index for index in range(len(way)) if index not in failed]
            errors = await send(self._sinks[label], way.pick(good) if failed else way)
            failed.update({good[index]: error for index, error in errors.items()})
        return failed

    def _group_ended(
        self, place: int, errors: Mapping[int, BaseException] | None
    ) -> Collection[int]:
        """End the group's branches, shorten the waits of the best-effort ones, and return the
        groups to cancel.
        """
        group = self._groups[place]
        self._ended.add(place)
        for label in group:
            self._fork.end(label)
        if self._ended.issuperset(self._required):
            for (label,) in self._groups[len(self._required) :]:
                self._fork.hurry(label)
        failed_as_a_whole = errors is not None and len(errors) == len(self._ways[group[0]])
        cancels = self._cancels and place in self._required and failed_as_a_whole
        return [other for other in self._required if other not in self._ended] if cancels else ()


def _as_it_is(outcome: Outcome) -> Outcome:
    return outcome


publish("sluicegate", FanOut)
