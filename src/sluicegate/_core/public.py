"""The public homes of exported objects, and lazy loading of subpackages.

1. `publish` assigns an object its home: the public module that is named in reprs, errors and
   pickles, and in which its annotations are resolved. The package that loads an object publishes
   it, so its home does not depend on the first import. `publish_all` does so for the names of
   `__all__`, which are listed only there.
2. `later` defers a subpackage to the first access of one of its names (PEP 562). The name is then
   bound, so later accesses are plain attribute accesses. Concurrent accesses are safe: the import
   lock makes other threads wait.
3. The table of names duplicates the imports under `TYPE_CHECKING`, which type checkers and
   documentation need; the tests compare the two.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def publish(home: str, *objects: object) -> None:
    """Bind each object in the module `home`, if that is loaded, and set `home` as its
    `__module__`.
    """
    module = sys.modules.get(home)
    public = {} if module is None else vars(module)
    for thing in objects:
        if getattr(thing, "__module__", "").startswith("sluicegate."):
            thing.__module__ = home
            public[getattr(thing, "__name__", "")] = thing


def publish_all(package: str, home: str | None = None) -> None:
    """Publish the loaded classes and functions in the `__all__` of `package` that have no home yet.

    Their home is `home`, which defaults to the package. Homes are packages and `sluicegate.errors`,
    so an object with the name of another module in `__module__` has none.
    """
    known = vars(sys.modules[package])
    for name in known["__all__"]:
        thing = known.get(name)
        if isinstance(thing, (type, FunctionType)) and not _is_home(thing.__module__):
            publish(home or package, thing)


def _is_home(module: str) -> bool:
    return module == "sluicegate.errors" or hasattr(sys.modules[module], "__path__")


def later(
    home: str,
    table: Mapping[str, Sequence[str]],
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return a `__getattr__` and a `__dir__` for the package `home` that import lazily.

    Each subpackage in `table` is imported on the first access of it or of one of its listed names.
    A sibling package of `home` begins with a dot.
    """
    module = sys.modules[home]
    source = {name: subpackage for subpackage, names in table.items() for name in names}

    def find(name: str) -> object:
        if name in table:
            return import_module(f".{name}", home)  # binds the name
        if name not in source:
            raise AttributeError(
                f"module {home!r} has no attribute {name!r}", name=name, obj=module
            )
        thing = getattr(import_module(f".{source[name]}", home), name)
        vars(module)[name] = thing
        return thing

    def known() -> list[str]:
        return sorted({*vars(module), *table, *source})

    return find, known
