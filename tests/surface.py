"""The public names of the package and their signatures as text, one line each, for comparison with
the stored list.

Last come the types that the reference describes and no package exports: programs receive their
values, or pass a function or a protocol of their own.

`python tests/surface.py` prints the list. `tests/surface.txt` contains the stored one.
"""

from __future__ import annotations

import importlib
import inspect
import re
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import sluicegate

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(sluicegate.__file__).parents[1]  # of the checkout, or of an installed wheel
PAGES = Path(__file__).parents[1] / "docs" / "reference" / "api"


def public_packages() -> tuple[str, ...]:
    """The packages and modules that are the home of a public name; programs import it from there.

    A package may also collect names of another home, such as `sluicegate.http`: that is how
    the code is divided.
    """
    packages = ("sluicegate", "pyspark_sluicegate")
    paths = [path.parent for name in packages for path in (SOURCE / name).rglob("__init__.py")]
    paths += [path.with_suffix("") for path in SOURCE.glob("sluicegate/[!_]*.py")]
    names = (".".join(path.relative_to(SOURCE).parts) for path in paths)
    return tuple(sorted(filter(_is_home, names)))


def _is_home(name: str) -> bool:
    if any(part.startswith("_") for part in name.split(".")):
        return False
    module = importlib.import_module(name)
    if "." not in name:
        return True
    return any(
        getattr(getattr(module, each), "__module__", "") == name
        for each in getattr(module, "__all__", ())
    )


PUBLIC = public_packages()


def described() -> list[str]:
    """The names on the pages of the reference."""
    return [
        name
        for page in sorted(PAGES.glob("*.md"))
        for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]


def not_exported() -> Iterator[tuple[str, str]]:
    """The module and the name of each described type that no package exports."""
    for described_name in sorted(described()):
        module, _, name = described_name.rpartition(".")
        if module not in PUBLIC:
            yield module, name


def signature(thing: object) -> str:
    """The signature, with the annotations as written."""
    try:
        return str(inspect.signature(thing))  # type: ignore[arg-type]  # refused at run time by what has none
    except (TypeError, ValueError):
        return ""


def members(kind: type) -> Iterator[str]:
    """The public members of a class of the package, including inherited ones."""
    names = sorted(
        {
            name
            for base in kind.__mro__
            if base.__module__.startswith("sluicegate")
            for name in vars(base)
        }
    )
    for name in names:
        if name.startswith("_"):
            continue
        member = inspect.getattr_static(kind, name)
        if isinstance(member, property):
            yield f"{name}: property{signature(member.fget)[len('(self)') :]}"
        elif isinstance(member, (classmethod, staticmethod)) or inspect.isfunction(member):
            prefix = (
                "async " if inspect.iscoroutinefunction(inspect.unwrap(getattr(kind, name))) else ""
            )
            yield f"{name}{signature(getattr(kind, name))} {prefix}".rstrip()
        elif isinstance(member, Enum):
            yield f"{name} = {member.value!r}"
        else:
            yield name


def surface() -> list[str]:
    """Every public name with its signature."""
    lines: list[str] = []
    for path in PUBLIC:
        module = importlib.import_module(path)
        for name in sorted(getattr(module, "__all__", ())):
            thing = getattr(module, name)
            home = getattr(thing, "__module__", path)
            if home != path and home in PUBLIC:
                lines.append(f"{path}.{name} is {home}.{name}")
                continue
            lines.append(f"{path}.{name}{signature(thing)}")
            if isinstance(thing, type):
                lines += [f"{path}.{name}.{member}" for member in members(thing)]
    for path, name in not_exported():
        thing = getattr(importlib.import_module(path), name)
        lines.append(f"{path}.{name}{signature(thing)}")
        if isinstance(thing, type):
            lines += [f"{path}.{name}.{member}" for member in members(thing)]
    return lines


if __name__ == "__main__":
    print("\n".join(surface()))  # noqa: T201  # its whole purpose
