"""Shared fixtures, and the distribution of tests to several processes by `make test`."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from tests.kafka_brokers import broker, own_broker
from tests.properties import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Generator

    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import WorkerController

__all__ = ["broker", "own_broker"]

# The servers of tests are on loopback, and names with this ending do not resolve: proxies of the
# environment do not apply.
DIRECT = "127.0.0.1,localhost,::1,.invalid"
_direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
os.environ["no_proxy"] = os.environ["NO_PROXY"] = f"{_direct},{DIRECT}" if _direct else DIRECT

settings.load_profile(DEFAULT)

# A shell's background job ignores Ctrl-C, and so would every program that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SPARK = Path(__file__).parent / "spark"
SHARING = {
    "tests/spark/cluster/": "a Spark cluster",
    "tests/spark/": "one Spark session",
    "tests/kafka/": "two Kafka brokers",
    "tests/clusters/": "a Kafka cluster",
    "tests/clickhouse/": "an old ClickHouse",
    "tests/conformance/test_http_sinks.py": "one OpenSearch",
    "tests/examples/test_examples.py": "one OpenSearch",
    "tests/http/test_elasticsearch": "one OpenSearch",
    "tests/sinks/test_down_behind_a_proxy.py": "one OpenSearch",
    "tests/telemetry/test_trace_context.py": "two Kafka brokers",
}
"""By the beginning of a file's path, what it shares with others, in one process."""
WITHOUT_THE_SPARK_SESSION = {
    f"tests/spark/{name}.py"
    for name in (
        *("kafka/test_executor_killed", "kafka/test_windows", "source/test_connect"),
        *("levels/test_failover", "levels/test_mistakes", "levels/test_units"),
        *("pipeline/test_kinds", "pipeline/test_mistakes", "pipeline/test_page"),
        *("pipeline/test_pipeline_command", "pipeline/test_pipeline_command_refused"),
        *("source/test_discovery", "source/test_options"),
        *("test_chunks", "test_jars", "test_refused_chunk", "test_retries", "test_trial"),
        "test_worker",
    )
}
"""They have a Spark of their own, or none."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Schedule file by file; files that share a server that starts slowly stay together.

    One process takes files from the end of their order, the others from its beginning. The last
    folders mostly wait for servers and the first ones mostly compute, so they run side by side, and
    fewer processes start the servers of a folder.
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
            file: str = super()._split_scope(nodeid)
            if file in WITHOUT_THE_SPARK_SESSION:
                return file
            return next((name for start, name in SHARING.items() if file.startswith(start)), file)

    config.option.loadscopereorder = False
    return Shares(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A report may contain file names that are not Unicode, which xdist cannot send."""
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
    """With several processes Spark comes first, so that the others do not wait for it at the
    end.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.path.is_relative_to(SPARK))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze the collected tests and their imports: they stay until the end, so the garbage
    collector skips them. Otherwise its runs take a third of the collection time, and each run
    during the tests takes ten times as long.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
