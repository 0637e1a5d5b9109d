"""Generates the page of sources and their capabilities from their declarations.

`python -m tests.conformance.table` writes it, with `PYTHONPATH=src`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from tests.surface import PUBLIC

from sluicegate.consumer import SourceCapabilities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sources.md"
CALLS = ("open", "fetch", "commit", "ends")
"""The calls that every source has."""
STARTS = ("beginning", "end", "time", "offset")
TOP = """\
# What each source can do

Every source class declares its `capabilities`
([`SourceCapabilities`][sluicegate.consumer.SourceCapabilities]). The tables are generated from these
declarations, and the conformance suite tests them on the running source (`FileSource`, which ends,
has tests of its own). The consumer provides
order per key, retries, dead letters, batches of messages, drains and pauses, so they work with
every source.

```python
from sluicegate.kafka import KafkaSource

if KafkaSource.capabilities.metadata:
    print("a crash repeats unfinished records only")
```
"""
READING = """\
| column | meaning |
|---|---|
| starts at | where a group without stored positions can begin |
| fetches many | one request to the server fetches many records |
| lag | how `lag()` is computed: `ends`, the end of the partition minus the position; `counts`, the source counts the deliverable records; –, it is not available |
| shared by | what the processes of a group divide among themselves: whole `partitions`, or `keys`; –, a single process reads |
| cooperative | in a rebalance, partitions that stay with their process continue |
"""
SETTLING = """\
| column | meaning |
|---|---|
| offset map | settled records after an unfinished one are stored with the position, so a crash repeats only unfinished records; without it, a crash repeats all records after the position, unless records are acknowledged individually |
| each by itself | each record is acknowledged individually: no position waits for an unfinished record |
| extends | a record may be held for a limited time, which the consumer extends while a handler runs |
| takes back | the source keeps failed records for their backoff, and poison records; otherwise the consumer holds failed records, and poison goes to [`dead_letters` or `parked`](../how-to/retries-and-dead-letters.md) |
| transactions | what is committed together with your rows in [`flow.transaction`](../how-to/exactly-once.md): `positions`, in any destination that keeps them; `records`, in the database of the source |
"""


def sources() -> dict[str, type]:
    """The classes of sources that the package exports, by module and name."""
    return {
        f"{module}.{name}": thing
        for module in PUBLIC
        for name, thing in _exported(importlib.import_module(module))
        if isinstance(thing, type)
        and all(hasattr(thing, call) for call in CALLS)
        and thing.__module__ == module
        and not getattr(thing, "_is_protocol", False)
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
