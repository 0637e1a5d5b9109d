"""Writes of many processes that become visible together.

1. Each attempt of a task writes into its own invisible *stage*. The stage of a dead attempt is an
   orphan.
2. The driver *publishes* the stages of the successful attempts, in one transaction with the epoch's
   row in the ledger. Publishing again detects that row and changes nothing.
3. Orphans are found by the names of their application and version: at the start of the same
   version, and after a later version was published.
4. Sinks around the destination wrap the stage (`staged`). Those that write to a second destination
   are refused: a task does not know whether its epoch will be published.
5. A destination may lose staged rows: in a crash, in a failover, by a manual change. So a task
   takes its stage's *inventory* after its last write, and publishing compares the stage with it.
   Earlier losses, which the number of rows cannot reveal, are detected by the *mark* that `begin`
   leaves. After a loss nothing is published (`StagesLost`), and the tasks must run again, from
   `begin`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from .checks import bad
from .decorator import WrappingSink
from .sink import RefusesTransaction, RefusesUnits, branches_of, walk

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from .sink import Sink
    from .transaction import Committed, Counts, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the runs of an application have read their sources, as stored in the destination."""

    application: str
    version: int = 0
    """The number of the last run; 0 before the first."""
    positions: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """By source: the last value of a column, or the files that were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One atomic publication, made once."""

    unit: Unit
    """The unit in the ledger; it has one part."""
    overwrite: bool = False
    """Whether it replaces the target's contents."""
    partition: tuple[tuple[str, str | None], ...] = ()
    """Columns and their values as text: an overwrite replaces only the rows that have these."""
    ordered: bool = False
    """Whether a stage's rows are published in the order of their writes."""
    progress: Progress | None = None
    """Stored in the publishing transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A complete stage and its inventory, which `publish` checks."""

    name: str
    rows: int
    digest: str
    """The destination's hash of all rows in any order."""


@dataclass(frozen=True, slots=True)
class OpenStage:
    """A stage that is being written."""

    sink: Sink[Any]
    """The sink of the stage's writes."""
    inventory: Callable[[], Awaitable[Stage]]
    """Take the inventory after the last write. Suspends; can be repeated after an outage.

    Raises `StagesLost` if the stage is gone, or its number of rows differs from the written rows.
    """


@dataclass(frozen=True, slots=True)
class Begun:
    """Facts about the destination, read at the beginning of an epoch."""

    before: Committed | None
    """The earlier publication, if any."""
    mark: str = ""
    """Lets `publish` detect that the destination may have lost rows since; empty if no loss is
    possible.
    """


class Stages(Protocol):
    """The stages of an open destination. Tasks call `stage`; the driver calls the other methods."""

    def stage(self, epoch: Epoch) -> AbstractAsyncContextManager[OpenStage]:
        """Open a new stage; it is dropped after an exception or cancellation."""
        ...

    async def begin(self, epoch: Epoch) -> Begun:
        """Remove orphans, and leave a mark unless the epoch was published before.

        Raises `ConfigError` if the target cannot be overwritten, or a right is missing.
        """
        ...

    async def publish(
        self, epoch: Epoch, stages: Sequence[Stage], counts: Counts, mark: str
    ) -> Committed | None:
        """Make only these stages visible; drop them and the mark.

        If the epoch was published before, returns that publication and changes nothing. Raises
        `StagesLost`, with nothing published, if a stage differs from its inventory, no longer fits
        the target, or may have lost rows since `mark` was left; and `ConfigError` if a staged row is
        outside of the replaced partition.
        """

    async def discard(self, epoch: Epoch) -> None:
        """Drop all stages of the epoch, and its mark."""


class KeepsProgress(Protocol):
    """Stores the progress of incremental runs into an open destination."""

    async def read(self, application: str) -> Progress:
        """Return the progress. Raises `ConfigError` if it does not belong to the destination's rows."""
        ...

    async def store(self, progress: Progress) -> None:
        """Replace the progress."""


@runtime_checkable
class HasStages(Protocol):
    """A destination with stages; `stages_of` alone asks for them."""

    def _stages(self) -> Stages:
        """The stages, to be used while the destination is open."""
        ...

    def _progress(self) -> KeepsProgress:
        """The progress of incremental runs, to be used while the destination is open."""
        ...


def stages_of(sink: HasStages) -> Stages:
    """Return the stages of a destination, to be used while it is open."""
    return sink._stages()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # not public


def progress_of(sink: HasStages) -> KeepsProgress:
    """Return the progress of runs into a destination, to be used while it is open."""
    return sink._progress()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # not public


def check_staging(sink: Sink[Any]) -> HasStages:
    """Return the staging destination of a stack. Raises `ConfigError` if a part has no stages."""
    for part in walk(sink):
        if branches_of(part):
            early = "would write to another destination before anything is committed"
            raise bad("sink", part, f'{early}; have dead rows returned (dead_letters="return")')
        if isinstance(part, HasStages):
            return part
        if isinstance(part, RefusesTransaction):
            raise bad("sink", part, f"cannot write into a stage: {part.refuses_transaction}")
        if isinstance(part, RefusesUnits):
            raise bad("sink", part, f"cannot write into a stage: {part.refuses_units}")
        if not isinstance(part, WrappingSink):
            break
    rule = "has no stages that become visible at once; use a destination that has"
    raise bad("sink", sink, f"{rule}, such as PostgresSink")


@asynccontextmanager
async def staged(sink: Sink[Any], epoch: Epoch) -> AsyncGenerator[OpenStage]:
    """Open a new stage inside the open stack, in place of its destination. Suspends as `stage`."""
    around: list[WrappingSink[Any]] = []
    destination: Any = sink
    while isinstance(destination, WrappingSink):
        decorator = cast("WrappingSink[Any]", destination)
        around.append(decorator)
        destination = decorator.inner
    async with stages_of(destination).stage(epoch) as stage:
        within = stage.sink
        for decorator in reversed(around):
            within = decorator.around(within)
        yield replace(stage, sink=within)
