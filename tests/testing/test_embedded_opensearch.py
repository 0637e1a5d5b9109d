"""The embedded OpenSearch: starts as any user, stops like a crash, restarts on the same port and
data.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from sluicegate.testing import EmbeddedOpenSearch, EmbeddedUnavailable
from sluicegate.testing import embedded_opensearch as start_opensearch
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedOpenSearch]:
    """A server for this module, which tests kill."""
    with there_or_skip("opensearch", start_opensearch()) as server:
        yield server


@pytest.fixture
def running(server: EmbeddedOpenSearch) -> EmbeddedOpenSearch:
    server.start()
    return server


def put(server: EmbeddedOpenSearch, number: int) -> None:
    httpx.put(
        f"{server.url}/kept/_doc/{number}", json={"number": number}, timeout=30
    ).raise_for_status()


def get(server: EmbeddedOpenSearch, number: int) -> Any:
    return (
        httpx.get(f"{server.url}/kept/_doc/{number}", timeout=30)
        .raise_for_status()
        .json()["_source"]["number"]
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "way",
    [
        pytest.param("paused, kill", marks=pytest.mark.long),
        "the process alone",
        pytest.param("paused, stop", marks=pytest.mark.long),
    ],
)
def test_what_was_acknowledged_survives_and_the_port_stays(
    running: EmbeddedOpenSearch, way: str
) -> None:
    before, url = running.pid, running.url
    assert before is not None
    put(running, before)
    if way.startswith("paused"):
        running.pause()
    if way == "the process alone":
        os.kill(before, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(before)], timeout=20)
    elif way.endswith("stop"):
        running.stop()
    else:
        running.kill()
    assert running.pid is None
    running.restart()
    assert running.url == url
    assert running.pid not in {None, before}
    assert get(running, before) == before


@pytest.mark.long
def test_a_setting_that_the_server_refuses_is_told_and_nothing_is_left(
    running: EmbeddedOpenSearch,
) -> None:
    context = start_opensearch({"no.such.setting": "1"})
    with pytest.raises(EmbeddedUnavailable, match=r"no\.such\.setting"):
        context.__enter__()


@pytest.mark.parametrize(("program", "told"), [("java", "no java"), ("mvn", "no mvn")])
def test_what_is_missing_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, told: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "java").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path if program == "mvn" else tmp_path / "nothing"))
    with pytest.raises(EmbeddedUnavailable, match=told):
        start_opensearch().__enter__()
