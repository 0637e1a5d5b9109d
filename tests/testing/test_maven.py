"""Jars from Maven: a missing jar is reported, and no incomplete file stays. White box: the cache of
jars.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sluicegate._core.cache import fetch
from sluicegate.errors import MissingJars

if TYPE_CHECKING:
    from pathlib import Path

BRINGS = """#!/bin/sh
echo once >> "$CALLS"
for argument; do
    case $argument in -DoutputDirectory=*) folder=${argument#*=} ;; esac
done
mkdir "$folder" && touch "$folder/one.jar"
"""


@pytest.fixture
def pom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pom, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pom = tmp_path / "some.xml"
    pom.write_text("<project/>")
    return pom


def install_maven(folder: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    maven = folder / "mvn"
    maven.write_text(program)
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_jars_are_fetched_once_for_each_content_of_a_pom(
    pom: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_maven(tmp_path, BRINGS, monkeypatch)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    folder = fetch(pom)
    assert [jar.name for jar in folder.iterdir()] == ["one.jar"]
    assert fetch(pom) == folder
    pom.write_text("<project></project>")
    assert fetch(pom) != folder
    assert (tmp_path / "calls").read_text() == "once\n" * 2


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("#!/bin/sh\necho no such host\nexit 1\n", "no such host"),
        ("#!/bin/sh\nexec sleep 60\n", "within"),
    ],
)
def test_jars_that_cannot_be_had_are_told_and_leave_nothing(
    pom: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, told: str
) -> None:
    install_maven(tmp_path, program, monkeypatch)
    monkeypatch.setattr("sluicegate._core.cache.FETCH_SECONDS", 0.2)
    with pytest.raises(MissingJars, match=told):
        fetch(pom)
    assert [path.suffix for path in (tmp_path / "cache" / "sluicegate").iterdir()] == [".lock"]


def test_a_missing_maven_is_told(
    pom: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingJars, match="no mvn"):
        fetch(pom)


def test_a_cache_that_cannot_be_written_is_told(pom: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(MissingJars, match="cannot be kept"):
        fetch(pom)
