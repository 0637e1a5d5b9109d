"""Each item is written to one of several sinks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from .._core import checks
from .._core.classify import caused
from .._core.errors import PermanentError
from .._core.keywords import known_arguments
from .._core.logs import for_log
from .._core.opening import Openable, opened
from .._core.public import publish
from .._core.send import send
from .._core.sink import Capabilities, WriteResult, capabilities_of, repeatable_of_all
from .._core.stacking import as_sink
from .concurrency import ConcurrentWrite, write_concurrently

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from .._core.batch import Batch
    from .._core.outcome import Outcome
    from .._core.sink import Sink, SinkLike

T = TypeVar("T")


@known_arguments()
class Router(Openable, Generic[T]):
    """Writes each item to the sink that `choose` names; items of one route stay in order, and
    routes are written concurrently.

    Args:
        choose: a function from an item to the name of its route. If it raises, only that item
            fails, permanently.
        routes: the sinks, or functions of a batch, by name.
        default: the sink for names that are not in `routes`. Without one, such an item fails
            permanently.

    Each route has its own backoff and flush timeout. A `Retry` may be in a route or around the
    router.

    Raises `ConfigError` for a bad argument.

    Examples:
        >>> import asyncio
        >>> from sluicegate import RowBatch, send
        >>> from sluicegate.sinks import Router
        >>> from sluicegate.sinks import MemorySink
        >>> clicks, others = MemorySink(), MemorySink()
        >>> sink = Router(lambda event: event["kind"], {"click": clicks}, default=others)
        >>> asyncio.run(send(sink, RowBatch([{"kind": "click"}, {"kind": "order"}])))
        {}
        >>> clicks.items, others.items
        ([{'kind': 'click'}], [{'kind': 'order'}])
    """

    refuses_transaction = (
        "its routes are separate destinations, and no transaction spans two; split the items "
        "first, and write each part in its own transaction"
    )

    def __init__(
        self,
        choose: Callable[[T], str],
        routes: Mapping[str, SinkLike[T]],
        *,
        default: SinkLike[T] | None = None,
    ) -> None:
        rule = "must be a function from an item to the name of its route"
        self._choose: Callable[[T], object] = checks.function("choose", choose, rule)
        if not isinstance(cast("object", routes), Mapping) or not routes:
            rule = "must have at least one sink by name: Router(choose, {name: sink, ...})"
            raise checks.bad("routes", routes, rule)
        self._routes: dict[str, Sink[T]] = {
            name: as_sink(sink, f"routes[{name!r}]") for name, sink in routes.items()
        }
        self._default = None if default is None else as_sink(default, "default")

    @property
    def inners(self) -> tuple[Sink[T], ...]:
        """The sinks of all routes, and the default."""
        return (*self._routes.values(), *(() if self._default is None else (self._default,)))

    @property
    def capabilities(self) -> Capabilities:
        """The common promises of all routes, without transactions. Order holds only within a route,
        so no key is safe across them.
        """
        known = [capabilities_of(sink) for sink in self.inners]
        bounds = [one.max_concurrency for one in known if one.max_concurrency is not None]
        return Capabilities(
            idempotent=all(one.idempotent for one in known),
            repeatable=repeatable_of_all(known),
            columnar=False,
            several_destinations=True,
            max_concurrency=min(bounds, default=None),
        )

    async def _open(self, stack: AsyncExitStack) -> None:
        for sink in self.inners:
            await stack.enter_async_context(opened(sink))

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        """Write every route's items; suspends until all have ended. Cancellation reaches each."""
        errors: dict[int, BaseException] = {}
        chosen: dict[str, list[int]] = {}
        for index, item in enumerate(batch):
            try:
                chosen.setdefault(self._name_for(item), []).append(index)
            except Exception as error:
                errors[index] = _no_route(error)
        if chosen:
            errors.update(await self._spread(batch, chosen))
        return WriteResult.failed(batch, errors) if errors else None

    async def _spread(
        self, batch: Batch[T], chosen: Mapping[str, list[int]]
    ) -> dict[int, BaseException]:
        forks = {
            name: batch.pick(indices).fork({name: _as_it_is}) for name, indices in chosen.items()
        }
        with ExitStack() as stack:
            ways = {name: stack.enter_context(fork)[name] for name, fork in forks.items()}
            writes = [
                ConcurrentWrite([way.delivery], partial(send, self._sink(name), way))
                for name, way in ways.items()
            ]
            ended = [partial(fork.end, name) for name, fork in forks.items()]
            await write_concurrently(batch.delivery, writes, lambda place, _: ended[place]())
        name_of = {index: name for name, indices in chosen.items() for index in indices}
        return {
            index: forks[name_of[index]].error(batch.roots((index,))[0])
            for index in batch.unsettled()
            if index in name_of
        }

    def _sink(self, name: str) -> Sink[T]:
        return (
            self._routes[name] if self._default is None else self._routes.get(name, self._default)
        )

    def _name_for(self, item: T) -> str:
        name = self._choose(item)
        if not isinstance(name, str):
            message = (
                f"choose(item) returned {name!r}; it must return the name of a route, a string"
            )
            raise PermanentError(message)
        if name not in self._routes and self._default is None:
            message = f"there is no route {name!r}; routes: {', '.join(self._routes)}"
            raise PermanentError(message)
        return name

    def __repr__(self) -> str:
        return f"Router({', '.join(f'{name}={sink!r}' for name, sink in self._routes.items())})"


def _no_route(error: Exception) -> PermanentError:
    if isinstance(error, PermanentError):
        return error
    summary = f"choose(item) raised {for_log(error)}"
    return caused(PermanentError(f"choose(item) raised {error!r}"), error, summary=summary)


def _as_it_is(outcome: Outcome) -> Outcome:
    return outcome


publish("sluicegate.sinks", Router)
