"""The Kubernetes manifest fits the sample that consumes from Kafka."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from tests.examples.apps.service import APPS
from tests.examples.example import load

from sluicegate.consumer import probes

MARGIN = 5.0  # seconds for the probe server, the interpreter's exit and the kubelet
POD_START = 30.0  # seconds until the next pod has joined
MANIFEST = yaml.safe_load((APPS / "kafka_consumer.yaml").read_text())
POD = MANIFEST["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]
ENV = {entry["name"]: entry.get("value", "billing-0") for entry in CONTAINER["env"]}


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program with the environment of the manifest."""
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    return load("apps/kafka_consumer")


def test_the_times_fit(app: Any) -> None:
    """A drain ends before SIGKILL, and a restart before the group reassigns the partitions."""
    grace = POD["terminationGracePeriodSeconds"]
    assert grace > app.DRAIN + app.CLOSE_TIMEOUT + MARGIN
    assert grace + POD_START < float(ENV["SESSION_TIMEOUT"])
    app.make_consumer()  # checks the drain against the rebalance


def test_the_program_has_what_the_manifest_names(app: Any) -> None:
    """Variables, the port and the paths of the probes; a stable pod name."""
    source = (APPS / "kafka_consumer.py").read_text()
    assert set(re.findall(r'environ(?:\.get\(|\[)"(\w+)"', source)) == set(ENV)
    (port,) = CONTAINER["ports"]
    assert port["containerPort"] == app.PROBE_PORT
    served = {CONTAINER[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness")}
    assert served == {"/live"}
    assert CONTAINER["readinessProbe"]["httpGet"] == {"path": "/ready", "port": port["name"]}
    assert probes(app.make_consumer()) is not None
    assert CONTAINER["command"] == ["python", "kafka_consumer.py"]
    assert MANIFEST["kind"] == "StatefulSet"
    assert (
        MANIFEST["spec"]["selector"]["matchLabels"]
        == (MANIFEST["spec"]["template"]["metadata"]["labels"])
    )
