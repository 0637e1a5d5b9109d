"""The modules that an import loads, by number, and the names loaded on first access.

White box: the mechanism of names that are loaded later.
"""

from __future__ import annotations

import ast
import json
import pickle
import subprocess
import sys
import threading
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.surface import PUBLIC

import sluicegate
import sluicegate.batcher
import sluicegate.consumer
import sluicegate.kafka
import sluicegate.postgres
import sluicegate.sinks
import sluicegate.telemetry
from sluicegate._core.public import later

if TYPE_CHECKING:
    from types import ModuleType

MOST_MODULES = 52
"""Maximum number of Sluicegate modules after a bare import. Each costs about 0.4 ms, or 0.8 ms if
not compiled.
"""
MOST_WITH_BATCHER = 126
"""Maximum number of Sluicegate modules for a batcher whose sink is a plain function."""

DEFERRED_PARTS = {
    "sluicegate._core.values", "sluicegate._core.staging", "sluicegate._core.transaction",
    "sluicegate.batcher", "sluicegate.consumer", "sluicegate.letters", "sluicegate.retry", "sluicegate.sinks",
    "sluicegate.telemetry",
}  # fmt: skip
HEAVY = {
    "email", "gzip", "html", "http", "importlib.resources", "json", "pathlib", "random", "secrets",
    "statistics", "tempfile", "urllib.parse", "zipfile",
}  # fmt: skip
"""Parts of the standard library that a bare import must not load, unless `asyncio` does."""

DOORS = [
    "sluicegate.letters.letter", "sluicegate._core.transaction", "sluicegate.consumer.lanes.message",
    "sluicegate.postgres.sink.sink", "sluicegate.telemetry.tracing", "sluicegate.batcher.report",
    "sluicegate.batcher.blocking", "sluicegate.retry.circuit",
    "sluicegate.sinks.router", "sluicegate.sinks.timeout",
    "sluicegate.http.elasticsearch.sink", "sluicegate.files.sink", "sluicegate.http.write",
    "sluicegate.telemetry.prometheus",
]  # fmt: skip
"""Modules that a program may import first."""

LAZY = [
    sluicegate, sluicegate.consumer, sluicegate.kafka, sluicegate.postgres, sluicegate.sinks, sluicegate.telemetry,
]  # fmt: skip
_numbers = count()


def told(program: str) -> Any:
    """The JSON output of a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def loaded_by(statement: str) -> set[str]:
    """The modules that `statement` loads and `import asyncio` does not."""
    names = told(
        f"import sys, asyncio\nbefore = set(sys.modules)\n{statement}\nnew = [*sys.modules.keys() - before]\n"
        "import json\nprint(json.dumps(new))"
    )
    return set(names)


def ours(loaded: set[str]) -> set[str]:
    return {name for name in loaded if name.partition(".")[0] == "sluicegate"}


def homes(statement: str) -> dict[str, str]:
    """The module that each public name reports after `statement`."""
    found = told(
        f"{statement}\nimport json, sluicegate.sinks, sluicegate.retry, sluicegate.telemetry\n"
        "packages = [sluicegate, sluicegate.sinks, sluicegate.retry, sluicegate.telemetry]\n"
        "print(json.dumps({f'{p.__name__}.{n}': getattr(getattr(p, n), '__module__', '')"
        " for p in packages for n in p.__all__}))"
    )
    return dict(found)


@pytest.fixture(scope="module")
def bare() -> set[str]:
    return loaded_by("import sluicegate")


def test_a_bare_import_loads_no_more_modules_than_it_may(bare: set[str]) -> None:
    assert 20 < len(ours(bare)) <= MOST_MODULES


def test_a_batcher_loads_no_more_modules_than_it_may() -> None:
    loaded = loaded_by("from sluicegate import Batcher, Limits")
    assert MOST_MODULES < len(ours(loaded)) <= MOST_WITH_BATCHER
    assert loaded & DEFERRED_PARTS == {"sluicegate.batcher"}
    assert loaded & HEAVY == set()


def test_a_bare_import_loads_no_batcher_no_sink_no_retry_and_no_telemetry(bare: set[str]) -> None:
    assert bare & DEFERRED_PARTS == set()


def test_a_bare_import_loads_nothing_but_ours_and_the_standard_library(bare: set[str]) -> None:
    assert {name.partition(".")[0] for name in bare} - sys.stdlib_module_names == {"sluicegate"}


def test_a_bare_import_loads_no_heavy_part_of_the_standard_library(bare: set[str]) -> None:
    assert bare & HEAVY == set()


def test_the_deferred_parts_are_seen_once_they_are_loaded() -> None:
    """The assertions above would also pass with names that do not exist."""
    loaded = loaded_by(
        "from sluicegate import *\nfrom sluicegate.sinks import *\nfrom sluicegate.telemetry import *"
    )
    assert loaded >= DEFERRED_PARTS
    assert loaded & HEAVY > {"json", "pathlib"}


def test_one_sink_does_not_load_the_others() -> None:
    loaded = loaded_by("from sluicegate.postgres import PostgresSink")
    assert "sluicegate.postgres.sink.sink" in loaded
    others = {"files", "http", "kafka", "nats", "sinks", "postgres.queues", "postgres.streams.sink"}
    assert loaded & {f"sluicegate.{name}" for name in others} == set()


def test_metrics_load_their_own_part_only() -> None:
    loaded = loaded_by("from sluicegate.telemetry import Metrics")
    assert loaded & DEFERRED_PARTS <= {"sluicegate.telemetry", "sluicegate._core.transaction"}
    assert loaded & HEAVY == set()


def test_a_name_loads_its_own_part_only() -> None:
    loaded = loaded_by("from sluicegate import Retry")
    assert loaded & DEFERRED_PARTS <= {"sluicegate.retry", "sluicegate._core.transaction"}


LIFE = """
import asyncio, json, sys
from sluicegate import Batcher, BlockingBatcher, Limits, TransientError, run
loaded, counts = set(sys.modules), iter(range(1000))

def write(items):
    if next(counts) % 3 == 0:
        raise TransientError("not now")

async def main():
    async with Batcher(write, limits=Limits(max_items=3), key=lambda item: item % 2) as batcher:
        for item in range(20):
            await batcher.add(item)

run(main(), accept=("rejected",))
with BlockingBatcher(write, limits=Limits(max_items=3)) as blocking:
    for item in range(20):
        blocking.add(item)
print(json.dumps(sorted(sys.modules.keys() - loaded)))
"""


def test_nothing_is_loaded_in_the_life_of_a_batcher() -> None:
    """An import during a shutdown would use time of the drain, and may fail in a forked child."""
    assert told(LIFE) == []


@pytest.mark.parametrize("path", PUBLIC)
def test_dir_lists_every_public_name(path: str) -> None:
    module = import_module(path)
    assert set(dir(module)) >= set(getattr(module, "__all__", ()))


def test_dir_lists_deferred_names_before_they_are_loaded() -> None:
    listed = set(told("import json, sluicegate\nprint(json.dumps(dir(sluicegate)))"))
    assert listed >= {*sluicegate.__all__, "retry", "sinks", "telemetry", "__version__"}


@pytest.mark.parametrize("package", LAZY)
def test_every_deferred_name_is_that_of_its_module_and_bound_after_an_access(
    package: ModuleType,
) -> None:
    for part, names in table_of(package).items():
        home = import_module(f".{part}", package.__name__)
        for name in names:
            assert getattr(package, name) is getattr(home, name)
            assert vars(package)[name] is getattr(home, name)
            assert name in package.__all__


def table_of(package: ModuleType) -> dict[str, list[str]]:
    """The table of `later`, as in the source."""
    root = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    calls = (node for node in ast.walk(root) if isinstance(node, ast.Call))
    call = next(each for each in calls if ast.unparse(each.func) == "later")
    return dict(ast.literal_eval(call.args[1]))


def test_a_star_import_brings_every_public_name() -> None:
    names = told(
        "from sluicegate import *\nfrom sluicegate.sinks import *\nfrom sluicegate.batcher import *\n"
        "names = list(globals())\nimport json\nprint(json.dumps(names))"
    )
    assert set(names) >= {
        *sluicegate.__all__,
        *sluicegate.sinks.__all__,
        *sluicegate.batcher.__all__,
    }


def test_a_part_is_an_attribute_of_its_package_without_an_import_of_its_own() -> None:
    assert told(
        "import json, sluicegate\nparts = [sluicegate.sinks.combine, sluicegate.retry, "
        "sluicegate.telemetry, sluicegate.sinks.memory]\n"
        "print(json.dumps([part.__name__ for part in parts]))"
    ) == [
        "sluicegate.sinks.combine",
        "sluicegate.retry",
        "sluicegate.telemetry",
        "sluicegate.sinks.memory",
    ]


@pytest.fixture(scope="module")
def usual() -> dict[str, str]:
    """The modules that names report if each is loaded by its public name."""
    return homes("import sluicegate")


@pytest.mark.parametrize(
    "door", [DOORS[0], *(pytest.param(each, marks=pytest.mark.long) for each in DOORS[1:])]
)
def test_a_name_reports_the_same_home_by_whichever_door_it_was_loaded(
    door: str, usual: dict[str, str]
) -> None:
    assert homes(f"import {door}") == usual


def test_deferred_names_travel_by_pickle() -> None:
    kinds: list[object] = [
        sluicegate.Timeout,
        sluicegate.sinks.Unit,
        sluicegate.postgres.PostgresSink,
    ]
    sent = pickle.dumps(kinds)
    assert b"_core" not in sent
    assert told(
        f"import json, pickle\nkinds = pickle.loads({sent!r})\n"
        "print(json.dumps([f'{kind.__module__}.{kind.__qualname__}' for kind in kinds]))"
    ) == ["sluicegate.Timeout", "sluicegate.sinks.Unit", "sluicegate.postgres.PostgresSink"]


def test_annotations_find_deferred_names() -> None:
    assert told(
        "import json, typing, sluicegate\nhints = typing.get_type_hints(sluicegate.sinks.Transaction.record)\n"
        "print(json.dumps(hints['counts'] is sluicegate.sinks.Counts))"
    )


def test_an_unknown_name_is_refused_as_by_any_module() -> None:
    with pytest.raises(
        AttributeError, match="module 'sluicegate' has no attribute 'Bacher'"
    ) as info:
        sluicegate.Bacher  # type: ignore[attr-defined]  # noqa: B018  # the type checkers refuse it, too
    assert info.value.name == "Bacher"
    assert info.value.obj is sluicegate
    assert not hasattr(sluicegate.sinks, "PulsarSink")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package with two deferred modules, one of which counts how often it runs."""
    name = f"shelf_{next(_numbers)}"
    home = tmp_path / name
    home.mkdir()
    (home / "__init__.py").write_text(
        "from sluicegate._core.public import later\nruns = []\n"
        "__getattr__, __dir__ = later(__name__, {'a': ['x', 'y'], 'b': ['z']})\n"
    )
    (home / "a.py").write_text("from . import runs\nruns.append(1)\nx, y = object(), object()\n")
    (home / "b.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    return import_module(name)


def test_threads_that_come_at_the_same_time_load_a_module_once(shelf: ModuleType) -> None:
    start = threading.Barrier(8)
    found: list[tuple[object, object]] = []

    def look() -> None:
        start.wait()
        found.append((shelf.x, shelf.y))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {(shelf.x, shelf.y)}
    assert len(found) == 8
    assert shelf.runs == [1]


def test_a_second_access_is_that_of_a_plain_attribute(shelf: ModuleType) -> None:
    assert "x" not in vars(shelf)
    first = shelf.x
    del shelf.__getattr__
    assert shelf.x is first
    assert not hasattr(shelf, "y")


def test_a_module_that_cannot_be_loaded_says_so_at_each_access(shelf: ModuleType) -> None:
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
            shelf.z  # noqa: B018
    assert {"a", "b", "x", "y", "z", "runs"} <= set(dir(shelf))


def test_the_table_of_a_package_is_found_by_its_own_name(shelf: ModuleType) -> None:
    find, known = later(shelf.__name__, {"a": ["y"]})
    assert find("y") is shelf.a.y
    assert find("a") is shelf.a
    assert "y" in known()
