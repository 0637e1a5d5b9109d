"""What travels to the executors, and what is said where it cannot leave or cannot arrive.

1. A sink leaves as its description, by cloudpickle. Where something in it cannot be pickled, the
   error names the way to it: the attribute, the element, the variable that a function closes over.
2. Whatever arrives names the modules that it needs. One that an executor does not have is told
   together with what to do about it. The function that tells it travels by value, so it works even
   where Penstock itself is what is missing.
"""

from __future__ import annotations

import inspect
import pickle
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from ..._core.errors import NotPicklableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_ADVICE = (
    "the module {module} is not there on an executor. Install the package that has it "
    "where the executors run; or send the file with "
    "spark.sparkContext.addPyFile (on Spark Connect: spark.addArtifacts(..., "
    "pyfile=True)); or, for a module of your own, call "
    "pyspark.cloudpickle.register_pickle_by_value(module) before the write"
)


def description(sink: object) -> bytes:
    """The sink, pickled. Raises `NotPicklableError` naming what cannot travel."""
    try:
        return bytes(cloudpickle.dumps(sink))  # type: ignore[no-untyped-call]
    except NotPicklableError:
        raise
    except Exception as error:
        message = (
            f"{_culprit('sink', sink)} cannot be pickled, and has to travel to the "
            f"executors: {error}"
        )
        raise NotPicklableError(message) from error


def _loader() -> Callable[[bytes], Any]:
    def load(data: bytes) -> Any:  # a function within a function travels by value
        try:
            return pickle.loads(data)  # noqa: S301  # made by the driver of this very job
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(_ADVICE.format(module=error.name), name=error.name) from error

    return load


load = _loader()
"""Unpickle what `description` has made, or say which module is missing here and what to do."""


class Traveller:
    """Base of what Spark pickles for us. Must hold plain attributes."""

    def __reduce__(self) -> tuple[Any, ...]:
        plain = (_made, (type(self), vars(self)))
        return _loader(), (cloudpickle.dumps(_Reduced(plain)),)  # type: ignore[no-untyped-call]


class _Reduced:
    """Pickles as it is told."""

    def __init__(self, as_told: tuple[Any, ...]) -> None:
        self._as_told = as_told

    def __reduce__(self) -> tuple[Any, ...]:
        return self._as_told


def _made(kind: type[Any], state: Mapping[str, Any]) -> Any:
    made = object.__new__(kind)
    vars(made).update(state)
    return made


def _culprit(name: str, thing: object, depth: int = 10) -> str:
    """The way to what cannot be pickled: the innermost part of `thing` that fails by itself."""
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
