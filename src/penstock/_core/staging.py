"""Writes of many processes that become visible together.

1. Each attempt of a task writes into a *stage* of its own, which nobody reads. What an attempt that has died leaves there is an orphan.
2. The driver *publishes* the stages of the attempts that have succeeded, in one transaction with the epoch's row in the ledger. Published
   again, the epoch is found there, and nothing happens.
3. Orphans are found by the names of their application and version: at the begin of the same version, and after a later one was published.
4. Sinks around the destination stand around the stage (`staged`). Those that write to a second destination are refused: a task does not
   know whether its epoch will be published.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from .checks import bad
from .decorator import WrappingSink
from .sink import walk

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
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


@runtime_checkable
class StagingSink(Protocol):
    """A destination with stages. `stage` is called in the tasks, the rest on the driver; open it before."""

    def stage(self, epoch: Epoch) -> AbstractAsyncContextManager[tuple[str, Sink[Any]]]:
        """A new stage: its name for `publish`, and the sink that writes into it. Left by an exception or cancelled, it is dropped."""
        ...

    async def begin(self, epoch: Epoch) -> Committed | None:
        """Collect orphans; return what was published of this epoch before. Raises `ConfigError` for what cannot be overwritten."""
        ...

    async def publish(self, epoch: Epoch, stages: Sequence[str], counts: Counts) -> Committed | None:
        """Make these stages visible, and nothing else; drop them. Returns what another had published of this epoch; then nothing changed."""
        ...

    async def discard(self, epoch: Epoch) -> None:
        """Drop all stages of the epoch."""
        ...


def check_staging(sink: Sink[Any]) -> StagingSink:
    """The destination of a stack that can write into stages. Raises `ConfigError`, naming the part that cannot and why."""
    for part in walk(sink):
        if getattr(part, "inners", ()):
            rule = 'would write to another destination before anything is committed; have dead rows returned (dead_letters="return")'
            raise bad("sink", part, rule)
        if isinstance(part, StagingSink):
            return part
        reason = getattr(part, "refuses_transaction", None)
        if reason is not None:
            raise bad("sink", part, f"cannot write into a stage: {reason}")
        if not isinstance(part, WrappingSink):
            break
    raise bad("sink", sink, "has no stages that become visible at once; use a destination that has, such as PostgresSink")


@asynccontextmanager
async def staged(sink: Sink[Any], epoch: Epoch) -> AsyncGenerator[tuple[str, Sink[Any]]]:
    """A new stage's name, and the open stack around it instead of around its destination. Raises and suspends as the stage."""
    around: list[WrappingSink[Any]] = []
    destination: Any = sink
    while isinstance(destination, WrappingSink):
        decorator = cast("WrappingSink[Any]", destination)
        around.append(decorator)
        destination = decorator.inner
    async with cast("StagingSink", destination).stage(epoch) as (name, stage):
        for decorator in reversed(around):
            stage = decorator.around(stage)  # noqa: PLW2901  # one around the other
        yield name, stage
