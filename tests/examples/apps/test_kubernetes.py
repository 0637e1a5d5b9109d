"""The Kubernetes manifest fits the FastAPI sample."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from tests.examples.apps.service import APPS
from tests.examples.example import load

MARGIN = 3.0  # seconds for the interpreter's exit and the kubelet
DEPLOYMENT, SERVICE = yaml.safe_load_all((APPS / "kubernetes.yaml").read_text())
POD = DEPLOYMENT["spec"]["template"]
CONTAINER = POD["spec"]["containers"][0]
ENV = {entry["name"]: entry.get("value", "postgresql://unused") for entry in CONTAINER["env"]}


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The application as the manifest's environment makes it."""
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    return load("apps/fastapi_app")


def option(name: str) -> float:
    command = CONTAINER["command"]
    return float(command[command.index(name) + 1])


def test_the_drain_fits_into_the_grace_period(app: Any) -> None:
    """The pod's last seconds, one after the other, end before SIGKILL."""
    pre_stop = float(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    server = option("--timeout-graceful-shutdown")
    last_seconds = pre_stop + server + app.SHUTDOWN_DEADLINE + MARGIN
    assert last_seconds < POD["spec"]["terminationGracePeriodSeconds"]
    assert app.make_batcher().setup.shutdown_deadline == app.SHUTDOWN_DEADLINE
    longest_wait = app.ROOM_WITHIN + app.SAFE_WITHIN
    assert longest_wait < server  # or the server cuts requests that wait


def test_the_app_has_what_the_manifest_names(app: Any) -> None:
    """Probe and metrics paths, ports, and the names in the environment."""
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
    assert read - {"DATABASE_URL_FILE"} == set(ENV)  # the manifest has the URL itself
    module = CONTAINER["command"][1].split(":")[0]
    assert (APPS / f"{module}.py").exists()
