"""Objects named `MODULE:NAME` on the command line, imported with the current folder on the path."""

from __future__ import annotations

import importlib
import inspect
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._core.errors import SluicegateError
from .._core.stacking import as_sink
from .._core.text import text_of
from ..letters.text import printable, without_secrets
from .console import UseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._core.sink import Sink


_MOST = 5


def named(name: str) -> Any:
    """Import the object. Raises `UseError` if that fails."""
    module, colon, path = name.partition(":")
    if not colon or not module or not path:
        raise UseError(f"{name!r} must be MODULE:NAME")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UseError(f"{name!r}: {error}") from error
    except Exception as error:
        raise UseError(f"{name!r}: importing {module} failed: {_reason(error)}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise UseError(f"{name!r}: {module} has no {path}{_alternatives(found, part)}")
        found = getattr(found, part)
    return found


def _alternatives(found: object, part: str) -> str:
    """List the public names of the object, similar ones first."""
    own = getattr(found, "__name__", None)
    names = [
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and getattr(value, "__module__", own) == own
    ]
    ordered = dict.fromkeys((*get_close_matches(part, names), *names))
    return f"; it has {', '.join([*ordered][:_MOST])}" if ordered else ""


def named_sink(name: str) -> Sink[Any]:
    """Import a sink, a stack, a function of a batch, or a function that returns one of these.

    Raises `UseError`, and the `SluicegateError` of the function.
    """
    found = named(name)
    makes_one = callable(found) and not hasattr(found, "write") and not needs_arguments(found)
    try:
        made: Any = found() if makes_one else found
        return as_sink(made)
    except SluicegateError:
        raise  # its text names the wrong argument
    except Exception as error:
        raise UseError(f"{name!r} could not make a sink: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Format an error of the user's program with its text, which cannot quote an item yet.

    It may quote a DSN.
    """
    return printable(without_secrets(f"{type(error).__name__}: {text_of(error)}"))


def needs_arguments(function: Callable[..., Any]) -> bool:
    """Whether the function has an argument without a default."""
    parameters = inspect.signature(function).parameters.values()
    return any(
        each.default is each.empty and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
        for each in parameters
    )
