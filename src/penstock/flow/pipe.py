"""From a source into a batcher: the face of a pipe."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from .._core.keywords import takes
from ..consumer.operated import Operated
from .piped import PipedSchedule
from .pump import Pump
from .report import PipeReport, PipeStats
from .row_ends import HELD, RowEnds
from .settings import PipeOptions, checked_pipe
from .transform import Transformer, checked_transform

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Unpack

    from .._core.source import Source
    from ..batcher.batcher import Batcher
    from .transform import Transform


class Pipe(Operated):
    """Moves the records of a source through a batcher into its sink; made by `pipe`."""

    @takes(PipeOptions, checked_pipe)
    def __init__(
        self,
        source: Source,
        batcher: Batcher[Any],
        transform: Transform | None = None,
        **options: Unpack[PipeOptions],
    ) -> None:
        settings = checked_pipe(source, batcher, **options)
        super().__init__(source, settings.consumer, PipedSchedule)
        self._batcher = batcher
        self._concurrency = settings.concurrency
        self._transform = checked_transform(transform)

    async def run(self) -> PipeReport:
        """Open the batcher and the source, move records until `stop`, a cancellation or the end of
        the source, then drain and close both.

        The drain has one deadline for both: what is inside the batcher is written, then the
        positions are stored. Raises what opening raises, an error of the source or of the batcher,
        and what the transform raises of `SystemExit` and `KeyboardInterrupt`, after the drain. A
        cancellation drains, too, and is raised then; a second one ends the drain at once. A pipe
        runs once.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._open_batcher())
            engine = await self._enter(stack)
            settings = self._settings
            transformer = Transformer(
                self._transform,
                settings.retry,
                engine.commons,
                concurrency=self._concurrency,
            )
            feed = self._batcher.feed(holds=HELD)
            ends = RowEnds(engine, feed, insists=settings.poison == "block")
            pump = Pump(engine, self._batcher, feed, transformer, ends)
            drained = await engine.run(pump)
        assert self._batcher.report is not None
        return PipeReport(drained, self._batcher.report)

    @asynccontextmanager
    async def _open_batcher(self) -> AsyncIterator[None]:
        """Keep the batcher open in the context; its report tells what was not written."""
        await self._batcher.__aenter__()
        try:
            yield
        finally:
            await self._batcher.shutdown()

    def stats(self) -> PipeStats:
        """A snapshot of counts and levels. May be called in any thread."""
        return PipeStats(self._open().views.stats(), self._batcher.stats())


def pipe(
    source: Source,
    batcher: Batcher[Any],
    transform: Transform | None = None,
    **options: Unpack[PipeOptions],
) -> Pipe:
    """Make a pipe."""
    return Pipe(source, batcher, transform, **options)
