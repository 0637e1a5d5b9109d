"""What all tests share, and how they are shared out where several processes run them, as `make test` has it."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.kafka_brokers import broker, own_broker

if TYPE_CHECKING:
    from collections.abc import Generator

    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import WorkerController

__all__ = ["broker", "own_broker"]

# Servers of tests are on loopback, and names that end so do not resolve: no proxy of the environment takes part.
DIRECT = "127.0.0.1,localhost,::1,.invalid"
_direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
os.environ["no_proxy"] = os.environ["NO_PROXY"] = f"{_direct},{DIRECT}" if _direct else DIRECT

SPARK = Path(__file__).parent / "spark"
WITH_A_SPARK_OF_THEIR_OWN = {
    "tests/spark/kafka/test_windows.py",
    "tests/spark/source/test_connect.py",
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """A file at a time; the files that share the session of Spark stay together.

    One process takes the files from the end of their order, the others from its beginning. The
    last folders mostly wait for servers and the first ones mostly compute, so they run side by
    side, and fewer processes start the servers of a folder.
    """
    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import NodeManager

    NodeManager.EXIT_TIMEOUT = 30  # pyright: ignore[reportAttributeAccessIssue]  # seconds to end servers in after an interrupt; 10 may be too few

    class Shares(LoadFileScheduling):  # type: ignore[misc]  # it comes without types for mypy
        def _assign_work_unit(self, node: WorkerController) -> None:
            if node is self.nodes[-1] and len(self.nodes) > 1:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return (
                "tests/spark"
                if file.startswith("tests/spark/") and file not in WITH_A_SPARK_OF_THEIR_OWN
                else file
            )

    config.option.loadscopereorder = False
    return Shares(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A report may show names of files that are no Unicode, and xdist sends none of them."""
    return _encodable((yield))


def _encodable(part: Any) -> Any:
    if isinstance(part, str):
        return part.encode(errors="backslashreplace").decode()
    if isinstance(part, dict):
        return {name: _encodable(value) for name, value in part.items()}
    if isinstance(part, (list, tuple)):
        return type(part)(map(_encodable, part))
    return part


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Spark comes first where the tests are shared, so that nobody waits for it in the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.path.is_relative_to(SPARK))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The tests and all that they imported stay until the end: the garbage collector passes over
    them. While they are loaded, its runs would take a third of the time; in the tests, each would
    take ten times as long.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
