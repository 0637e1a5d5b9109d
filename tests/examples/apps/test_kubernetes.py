"""The Kubernetes manifest fits the FastAPI sample."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml
from tests.examples.apps.service import APPS, PLAIN, TABLE, query, service
from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedPostgres

MARGIN = 3.0  # seconds for the interpreter's exit and the kubelet
DEPLOYMENT, SERVICE = yaml.safe_load_all((APPS / "kubernetes.yaml").read_text())
POD = DEPLOYMENT["spec"]["template"]
CONTAINER = POD["spec"]["containers"][0]
ENV = {entry["name"]: entry.get("value", "postgresql://unused") for entry in CONTAINER["env"]}


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The application with the environment of the manifest."""
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    return load("apps/fastapi_app")


def option(name: str) -> float:
    command = CONTAINER["command"]
    return float(command[command.index(name) + 1])


def test_the_drain_fits_into_the_grace_period(app: Any) -> None:
    """The last phases of the pod, one after another, end before SIGKILL."""
    pre_stop = float(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    server = option("--timeout-graceful-shutdown")
    last_seconds = pre_stop + server + app.SHUTDOWN_DEADLINE + MARGIN
    assert last_seconds < POD["spec"]["terminationGracePeriodSeconds"]
    assert app.make_batcher().setup.shutdown_deadline == app.SHUTDOWN_DEADLINE
    assert server > app.STORED_WITHIN  # otherwise the server cuts waiting requests


def test_the_app_has_what_the_manifest_names(app: Any) -> None:
    """Paths of probes and metrics, ports, and the names in the environment."""
    probes = [CONTAINER[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    notes = POD["metadata"]["annotations"]
    named = {probe["path"] for probe in probes} | {notes["prometheus.io/path"]}
    assert named <= {route.path for route in app.app.routes}
    (port,) = CONTAINER["ports"]
    assert port["containerPort"] == option("--port") == int(notes["prometheus.io/port"])
    assert {probe["port"] for probe in probes} == {port["name"]}
    assert SERVICE["spec"]["ports"][0]["targetPort"] == port["name"]
    assert SERVICE["spec"]["selector"] == POD["metadata"]["labels"]
    source = (APPS / "fastapi_app.py").read_text()
    read = set(re.findall(r'environ(?:\.get\(|\[)"(\w+)"', source))
    assert read - {"DATABASE_URL_FILE"} == set(ENV)  # the manifest contains the URL itself
    module = CONTAINER["command"][1].split(":")[0]
    assert (APPS / f"{module}.py").exists()


def timeless(line: str) -> str:
    """A line of the log without the process, the port and the duration of the shutdown."""
    line = re.sub(r"\[\d+\]|http://[\d.:]+|\(spent on.*", "", line)
    return re.sub(r"[\d.]+ s:", "N s:", line)


async def log_of_a_pod(dsn: str) -> list[str]:
    """The output of the manifest's command, on loopback, with the test's own port and database."""
    server: str
    options: list[str]
    server, *options = CONTAINER["command"]
    own = {"0.0.0.0": "127.0.0.1", str(CONTAINER["ports"][0]["containerPort"]): "0"}
    command = (sys.executable, "-m", server, *[own.get(option, option) for option in options])
    async with service(*command, env={**ENV, "DATABASE_URL": dsn}) as pod:
        url = await pod.url()
        async with httpx.AsyncClient(base_url=url, timeout=20.0, verify=PLAIN) as client:
            answer = await client.post("/events/stored", json={"id": 1, "action": "login"})
        assert answer.status_code in {201, 202}  # 202 if the drain writes it
        await pod.terminate()
    return pod.lines


def test_the_log_of_a_pod(embedded_postgres: EmbeddedPostgres) -> None:
    """From its start to the drain on SIGTERM, as the page shows it."""
    dsn = embedded_postgres.dsn
    asyncio.run(query(dsn, "DROP TABLE IF EXISTS events", TABLE))
    said, *_ = printed_on("how-to/run-on-kubernetes.md")
    lines = asyncio.run(log_of_a_pod(dsn))
    assert [timeless(line) for line in lines] == [timeless(line) for line in said.splitlines()]
