"""The public homes of exported objects, and those that load on first access.

1. `publish` gives an object its home: the public module that reprs, errors and pickles name and in
   which its annotations are looked up. The package that loads an object publishes it, so its home
   never depends on the name by which it was reached first.
2. `later` defers a subpackage to the first access of one of its names (PEP 562). The name is bound
   then: a second access is that of a plain attribute. Threads may come at the same time, since
   the lock of the import makes them wait.
3. A table of names stands beside the same imports under `TYPE_CHECKING`, for type checkers and
   documentation; the tests compare the two.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def publish(home: str, *objects: object) -> None:
    """Bind each object in `home`, which it reports as its module in reprs, errors and docs."""
    public = vars(sys.modules[home])
    for thing in objects:
        if getattr(thing, "__module__", "").startswith("penstock."):
            thing.__module__ = home
            public[getattr(thing, "__name__", "")] = thing


def later(
    home: str,
    table: Mapping[str, Sequence[str]],
    elsewhere: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of the package `home`: it imports each subpackage of `table`
    when the subpackage, or one of the names listed for it, is accessed.

    Names that a user may expect here although they are `elsewhere`, by subpackage, raise an
    `ImportError` with the right import: `from` replaces the message of an `AttributeError`.
    """
    module = sys.modules[home]
    source = {name: subpackage for subpackage, names in table.items() for name in names}
    misplaced = {name: part for part, names in (elsewhere or {}).items() for name in names}

    def find(name: str) -> object:
        if name in table:
            return import_module(f"{home}.{name}")  # which binds it
        if name in misplaced:
            right = f"from {home}.{misplaced[name]} import {name}"
            raise ImportError(f"{name} is not in {home}; write: {right}", name=home)
        if name not in source:
            raise AttributeError(
                f"module {home!r} has no attribute {name!r}", name=name, obj=module
            )
        thing = getattr(import_module(f"{home}.{source[name]}"), name)
        vars(module)[name] = thing
        return thing

    def known() -> list[str]:
        return sorted({*vars(module), *table, *source})

    return find, known
