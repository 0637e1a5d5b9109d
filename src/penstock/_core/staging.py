"""Writes of many processes that become visible together.

1. Each attempt of a task writes into a *stage* of its own, which nobody reads. What an attempt that
   has died leaves there is an orphan.
2. The driver *publishes* the stages of the attempts that have succeeded, in one transaction with
   the epoch's row in the ledger. Published again, the epoch is found there, and nothing happens.
3. Orphans are found by the names of their application and version: at the begin of the same
   version, and after a later one was published.
4. Sinks around the destination stand around the stage (`staged`). Those that write to a second
   destination are refused: a task does not know whether its epoch will be published.
5. A destination may lose what is staged: in a crash, in a failover, by a hand. So a task takes its
   stage's *inventory* when it has written everything, and publishing compares it with what is
   there. Rows that were lost before that, where their number proves nothing, are told from the
   *mark* that beginning has left. Nothing is published then (`StagesLost`), and the tasks have to
   run again, from `begin`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from .checks import bad
from .decorator import WrappingSink
from .sink import RefusesTransaction, branches_of, walk

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from .sink import Sink
    from .transaction import Committed, Counts, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What is published at once, once."""

    unit: Unit
    """Its name in the ledger; one part."""
    overwrite: bool = False
    """Whether it takes the place of everything that is there."""
    ordered: bool = False
    """Whether the rows of a stage are published in the order in which they were written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage that is complete, with its inventory: what `publish` must find in it."""

    name: str
    rows: int
    digest: str
    """A hash of all rows, whatever their order, as the destination makes it."""


@dataclass(frozen=True, slots=True)
class OpenStage:
    """A stage that is being written."""

    sink: Sink[Any]
    """What writes into it."""
    inventory: Callable[[], Awaitable[Stage]]
    """Take the inventory, after the last write has ended. Suspends; may be called again where the
    destination was not there.

    Raises `StagesLost` where the stage is gone, or does not hold the rows that were written, as far
    as their number tells.
    """


@dataclass(frozen=True, slots=True)
class Begun:
    """The beginning of an epoch."""

    before: Committed | None
    """What was published of it before."""
    mark: str = ""
    """For `publish`, which finds by it that the destination may have lost rows since; empty where
    there is nothing to find out by.
    """


@runtime_checkable
class StagingSink(Protocol):
    """A destination with stages. `stage` is called in the tasks, the rest on the driver; open it
    before.
    """

    def stage(self, epoch: Epoch) -> AbstractAsyncContextManager[OpenStage]:
        """A new stage. Left by an exception or cancelled, it is dropped."""
        ...

    async def begin(self, epoch: Epoch) -> Begun:
        """Collect orphans, and leave a mark unless the epoch was published before. Raises
        `ConfigError` for what cannot be overwritten.
        """
        ...

    async def publish(
        self, epoch: Epoch, stages: Sequence[Stage], counts: Counts, mark: str
    ) -> Committed | None:
        """Make these stages visible, and nothing else; drop them and what `mark` stands for.

        Returns what another had published of this epoch; then nothing changed. Raises `StagesLost`,
        with nothing published, where a stage is not as its inventory says, does not fit the target
        any more, or may have lost rows since `mark` was left.
        """
        ...

    async def discard(self, epoch: Epoch) -> None:
        """Drop all stages of the epoch, and its mark."""
        ...


def check_staging(sink: Sink[Any]) -> StagingSink:
    """The staging destination of a stack. Raises `ConfigError` with the part that has no stages."""
    for part in walk(sink):
        if branches_of(part):
            rule = (
                "would write to another destination before anything is committed; have dead "
                'rows returned (dead_letters="return")'
            )
            raise bad("sink", part, rule)
        if isinstance(part, StagingSink):
            return part
        if isinstance(part, RefusesTransaction):
            raise bad("sink", part, f"cannot write into a stage: {part.refuses_transaction}")
        if not isinstance(part, WrappingSink):
            break
    raise bad(
        "sink",
        sink,
        "has no stages that become visible at once; use a destination that has, such as "
        "PostgresSink",
    )


@asynccontextmanager
async def staged(sink: Sink[Any], epoch: Epoch) -> AsyncGenerator[OpenStage]:
    """A new stage inside the open stack, in place of its destination. Suspends as the stage."""
    around: list[WrappingSink[Any]] = []
    destination: Any = sink
    while isinstance(destination, WrappingSink):
        decorator = cast("WrappingSink[Any]", destination)
        around.append(decorator)
        destination = decorator.inner
    async with cast("StagingSink", destination).stage(epoch) as stage:
        within = stage.sink
        for decorator in reversed(around):
            within = decorator.around(within)
        yield replace(stage, sink=within)
