"""A sink as its description: pickled for the executors, and tried once on the driver.

1. A sink is sent as its description, by cloudpickle. If a part of it cannot be pickled, the error
   names the path to it: the attribute, the element, the variable that a function closes over.
2. Unpickling imports modules. If an executor lacks a module, the error names its interpreter and
   the remedies. The function that raises it is pickled by value, so it works even if Sluicegate
   itself is missing.
3. A trial opens a copy on the driver before the job, so that its errors appear once and early. It
   has its own loop in a separate thread: a caller may have a running loop, and a sink that is open
   elsewhere is not affected. An open sink knows its destination, so it is checked again. Nothing is
   written.
4. A request to stop ends the trial immediately; its thread is a daemon, so an opening that ignores
   its cancellation does not keep the process alive.
"""

from __future__ import annotations

import inspect
import logging
import pickle
import sys
from concurrent.futures import wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from .._core.errors import NotPicklableError, SinkError
from .._core.opening import opened
from .._core.runtime.loop_thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from threading import Event

    from .._core.sink import Sink

logger = logging.getLogger("sluicegate.spark")
LOOK_SECONDS = 0.2
"""Interval between looks at a request to stop, in seconds."""
_STOP: ContextVar[Event | None] = ContextVar("_STOP", default=None)
NOTE = (
    "sluicegate opened the sink on the driver to check it; if only the executors can reach the "
    "destination, pass check=False"
)
ADVICE = (
    "the module {module} is missing on an executor, whose Python is {python}. If the driver has "
    "another one, set the environment variable PYSPARK_PYTHON to its path before Spark starts. "
    "Otherwise install the package that has it on the executors, or send an environment with "
    "spark.archives. Code that is not compiled can also be sent by --py-files, by "
    "spark.sparkContext.addPyFile (on Spark Connect: spark.addArtifacts(..., pyfile=True)): "
    "Sluicegate as the file that `sluicegate pipeline package` writes. For a module of your own, "
    "there is pyspark.cloudpickle.register_pickle_by_value(module), before the write"
)


def description(sink: object) -> bytes:
    """Pickle the sink. Raises `NotPicklableError` naming the part that cannot be pickled."""
    try:
        return bytes(cloudpickle.dumps(sink))  # type: ignore[no-untyped-call]
    except NotPicklableError:
        raise
    except Exception as error:
        message = (
            f"{_culprit('sink', sink)} cannot be pickled, but must be sent to the "
            f"executors: {error}"
        )
        raise NotPicklableError(message) from error


def _loader() -> Callable[[bytes], Any]:
    def load(data: bytes) -> Any:  # a nested function is pickled by value
        try:
            return pickle.loads(data)  # noqa: S301  # created by the driver of this job
        except ModuleNotFoundError as error:
            told = ADVICE.format(module=error.name, python=sys.executable)
            raise ModuleNotFoundError(told, name=error.name) from error

    return load


load = _loader()
"""Unpickle a `description`; the error for a missing module names the remedy."""


class Traveller:
    """Base of the objects that Spark pickles. Attributes must be plain."""

    def __reduce__(self) -> tuple[Any, ...]:
        plain = (_make, (type(self), vars(self)))
        return _loader(), (cloudpickle.dumps(_Reduced(plain)),)  # type: ignore[no-untyped-call]


class _Reduced:
    """Pickles as the given reduction."""

    def __init__(self, reduction: tuple[Any, ...]) -> None:
        self._reduction = reduction

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduction


def _make(kind: type[Any], state: Mapping[str, Any]) -> Any:
    made = object.__new__(kind)
    vars(made).update(state)
    return made


def _culprit(name: str, thing: object, depth: int = 10) -> str:
    """Find the path to the innermost part of `thing` that cannot be pickled alone."""
    for part_name, part in _parts(name, thing) if depth else ():
        if not _travels(part):
            return _culprit(part_name, part, depth - 1)
    return f"{name}={thing!r}"


def _travels(thing: object) -> bool:
    try:
        cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]
    except Exception:
        return False
    return True


def _parts(name: str, thing: object) -> Iterator[tuple[str, object]]:
    if inspect.ismethod(thing):
        yield from _parts(name, thing.__self__)
    elif inspect.isfunction(thing):
        used = inspect.getclosurevars(thing)
        yield from (
            (f"{name}.{thing.__name__}.{variable}", value)
            for variable, value in {**used.globals, **used.nonlocals}.items()
        )
    elif isinstance(thing, dict):
        yield from ((f"{name}[{key!r}]", value) for key, value in thing.items())
    elif isinstance(thing, (list, tuple, set, frozenset)):
        yield from ((f"{name}[{place}]", value) for place, value in enumerate(thing))
    else:
        yield from (
            (f"{name}.{attribute.lstrip('_')}", value)
            for attribute, value in getattr(thing, "__dict__", {}).items()
        )


def try_out(description: bytes, check: Callable[[Sink[Any]], None]) -> None:
    """Open the sink, `check` it and close it again; blocks.

    Raises the errors of opening and of `check`, and `WriteStopped`.
    """
    thread = LoopThread("sluicegate check", logger=logger)
    thread.start()
    trial = thread.spawn(_open(description, check))
    try:
        while not wait([trial], LOOK_SECONDS).done:
            check_stop()
        trial.result()
        check_stop()
    except (SinkError, OSError) as error:
        error.add_note(NOTE)
        raise
    finally:
        is_over = trial.done()
        trial.cancel()
        thread.end(None if is_over else LOOK_SECONDS)


async def _open(description: bytes, check: Callable[[Sink[Any]], None]) -> None:
    sink: Any = pickle.loads(description)  # noqa: S301  # made by this process
    async with opened(sink):
        check(sink)


class WriteStopped(Exception):
    """The write was stopped before it began; nothing was written."""


@contextmanager
def stoppable(stop: Event | None) -> Generator[None]:
    """Let `stop` end the trials of this thread inside, with `WriteStopped`."""
    token = _STOP.set(stop)
    try:
        check_stop()
        yield
    finally:
        _STOP.reset(token)


def check_stop() -> None:
    """Raise `WriteStopped` if this thread's write is to stop."""
    stop = _STOP.get()
    if stop is not None and stop.is_set():
        raise WriteStopped
