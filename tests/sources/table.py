"""The page of sources and what each can do, made from their declarations.

`python -m tests.sources.table` writes it, with `PYTHONPATH=src`.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

import penstock.sources
from penstock.sources import SourceCapabilities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sources.md"
CALLS = ("open", "fetch", "keep_alive", "commit", "ends", "extend")
"""The calls that every source has."""
STARTS = ("beginning", "end", "time", "offset")
TOP = """\
# What each source can do

Every source declares what it can do as `capabilities` of its class
([`SourceCapabilities`][penstock.sources.SourceCapabilities]). The tables are made from these
declarations, and the conformance suite checks them on the running source. Order per key, retries, dead
letters, batches of messages, drains and pauses are the consumer's, so every source has them.

```python
from penstock.sources.kafka import KafkaSource

if KafkaSource.capabilities.metadata:
    print("a crash repeats unfinished records only")
```
"""
READING = """\
| column | says |
|---|---|
| starts at | where a group without stored positions can begin |
| fetches many | one request to the server fetches many records |
| lag | how `lag()` knows it: `ends`, the end of the partition less the position; `counts`, the source counts what can be delivered; without either, it is not told |
| shared by | what several processes of a group divide among themselves: whole `partitions`, or `keys`; without either, one process reads alone |
| cooperative | in a rebalance, partitions that stay with their process go on |
"""
SETTLING = """\
| column | says |
|---|---|
| offset map | settled records behind an unfinished one are stored with the position, so that a crash repeats only what was unfinished; without it, a crash repeats everything behind the position, but where each record is settled by itself |
| each by itself | each record is acknowledged by itself: there is no position that waits for an unfinished one |
| extends | the time of a held record is limited, and the consumer extends it while a handler runs |
| takes back | a failed record is kept by the source for its backoff, and poison is kept there, too; otherwise the consumer holds it, and poison is for [`dead_letters` or `parked`](../how-to/retries-and-dead-letters.md) |
| transactions | what commits together with your rows in [`flow.transaction`](../how-to/exactly-once.md): `positions`, in any destination that keeps them; `records`, in the database of the source |
"""


def modules() -> list[str]:
    """The public modules with sources."""
    package = penstock.sources
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return sorted(each.name for each in found if each.ispkg)


def sources() -> dict[str, type]:
    """The classes of sources that the package exports, by module and name."""
    return {
        f"{module}.{name}": thing
        for module in modules()
        for name, thing in _exported(importlib.import_module(module))
        if isinstance(thing, type) and all(hasattr(thing, call) for call in CALLS)
    }


def _exported(module: object) -> Iterable[tuple[str, object]]:
    return ((name, getattr(module, name)) for name in getattr(module, "__all__", ()))


def capabilities() -> dict[str, SourceCapabilities]:
    """The declarations, by module and name. Raises `TypeError` for a source without one."""
    declared: dict[str, SourceCapabilities] = {}
    for name, source in sources().items():
        said = getattr(source, "capabilities", None)
        if not isinstance(said, SourceCapabilities):
            raise TypeError(f"{name} declares no capabilities = SourceCapabilities(...)")
        declared[name] = said
    return declared


def _yes(has: bool) -> str:
    return "yes" if has else "–"


def _said(word: str | None) -> str:
    return word or "–"


READ: Mapping[str, Callable[[SourceCapabilities], str]] = {
    "starts at": lambda said: _said(", ".join(each for each in STARTS if each in said.starts)),
    "fetches many": lambda said: _yes(said.batches),
    "lag": lambda said: _said(said.lag),
    "shared by": lambda said: _said(said.shares),
    "cooperative": lambda said: _yes(said.cooperative),
}
SETTLED: Mapping[str, Callable[[SourceCapabilities], str]] = {
    "offset map": lambda said: _yes(said.metadata),
    "each by itself": lambda said: _yes(said.settles_each),
    "extends": lambda said: _yes(said.extends),
    "takes back": lambda said: _yes(said.takes_back),
    "transactions": lambda said: _said(said.transactions),
}


def _table(columns: Mapping[str, Callable[[SourceCapabilities], str]]) -> str:
    rows = [["source", *columns], ["---"] * (1 + len(columns))]
    for path, said in capabilities().items():
        name = path.rpartition(".")[2]
        rows.append([f"[`{name}`][{path}]", *(told(said) for told in columns.values())])
    return "".join(map(_row, rows))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def page() -> str:
    """The whole page."""
    parts = [
        TOP,
        "## Reading\n",
        _table(READ),
        READING,
        "## Settling\n",
        _table(SETTLED),
        SETTLING,
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
