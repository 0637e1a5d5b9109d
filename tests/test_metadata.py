"""The wheel's metadata with and without an address of the project, and the extension."""

from __future__ import annotations

import re
import zipfile
from email import message_from_bytes
from typing import TYPE_CHECKING

import pytest
from tests.examples.example import ROOT

pytest.importorskip("hatchling")
if not (ROOT / "src").is_dir():
    pytest.skip("the sources are removed", allow_module_level=True)

from hatch_build import EXTENSION
from hatchling.builders.wheel import WheelBuilder

from sluicegate.testing.servers.require import skip_or_fail

if TYPE_CHECKING:
    from email.message import Message
    from pathlib import Path

REPOSITORY = "https://git.example/water/sluicegate"
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with the real metadata, and the minimal code that has a version."""
    project = tmp_path / "project"
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        target = project / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    for package in ("sluicegate", "pyspark_sluicegate"):
        (project / "src" / package).mkdir(parents=True)
    release(project, "0.1.0.dev0")
    return project


def release(project: Path, version: str) -> None:
    (project / "src" / "sluicegate" / "__init__.py").write_text(f'__version__ = "{version}"\n')


def metadata(project: Path) -> Message:
    """The `METADATA` of a newly built wheel."""
    (path,) = WheelBuilder(str(project)).build(directory=str(project / "dist"))
    with zipfile.ZipFile(path) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(wheel.read(name))


def test_the_wheel_has_the_files_of_the_console(tmp_path: Path) -> None:
    """The console loads nothing from other hosts: templates, styles, scripts and their licence."""
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path))
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if name.startswith("sluicegate/console/")}
    folder = ROOT / "src" / "sluicegate" / "console"
    files = [each for each in folder.rglob("*.*") if each.suffix != ".pyc" and each.is_file()]
    assert len(files) > 30
    assert names == {each.relative_to(ROOT / "src").as_posix() for each in files}
    assert "sluicegate/console/static/htmx.LICENSE" in names


def described(found: Message) -> str:
    text = found.get_payload(decode=True)
    assert isinstance(text, bytes)
    return text.decode()


def test_without_an_address(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain text in place of broken links; everything else as in the README."""
    monkeypatch.delenv("SLUICEGATE_REPOSITORY", raising=False)
    monkeypatch.delenv("SLUICEGATE_SITE", raising=False)
    found = metadata(folder)
    assert found["Description-Content-Type"] == "text/markdown"
    assert found.get_all("Project-URL") is None
    text = described(found)
    assert [link for link in LINK.findall(text) if not link.startswith("https://")] == []
    assert "<!--" not in text
    assert "![" not in text
    assert "| PostgreSQL tables | `sluicegate.postgres` | `PostgresSink` | | `postgres` |" in text
    assert "Behaviours has the test of each promise" in text
    readme = (ROOT / "README.md").read_text()
    code = re.compile(r"^```.*?^```$", re.M | re.S)
    assert code.findall(text) == code.findall(readme)


def test_with_an_address(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every relative link leads to a file of the repository."""
    monkeypatch.setenv("SLUICEGATE_REPOSITORY", f"{REPOSITORY}/")
    monkeypatch.delenv("SLUICEGATE_SITE", raising=False)
    files = f"{REPOSITORY}/blob/main"
    found = metadata(folder)
    assert found.get_all("Project-URL") == [
        f"Documentation, {files}/docs/index.md",
        f"Source, {REPOSITORY}",
        f"Issues, {REPOSITORY}/issues",
        f"Changelog, {files}/CHANGELOG.md",
    ]
    relative = [
        link
        for link in LINK.findall((ROOT / "README.md").read_text())
        if not link.startswith("https://")
    ]
    picture = relative.pop(0)
    links = LINK.findall(described(found))
    assert [link for link in links if not link.startswith("https://")] == []
    assert links.pop(0) == f"{REPOSITORY}/raw/main/{picture}"
    ours = [link.removeprefix(f"{files}/") for link in links if link.startswith(files)]
    assert ours == [f"README.md{link}" if link[0] == "#" else link for link in relative]


def test_a_release_links_to_its_tag(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEGATE_REPOSITORY", REPOSITORY)
    monkeypatch.setenv("SLUICEGATE_SITE", "https://docs.example")
    release(folder, "1.2.0")
    found = metadata(folder)
    assert f"({REPOSITORY}/blob/v1.2.0/docs/index.md)" in described(found)
    assert (found.get_all("Project-URL") or [])[0] == "Documentation, https://docs.example"


@pytest.fixture
def with_extension(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the source of the extension, which is to be compiled."""
    source = folder / "src" / EXTENSION
    source.parent.mkdir(parents=True)
    source.write_bytes((ROOT / "src" / EXTENSION).read_bytes())
    monkeypatch.setenv("SLUICEGATE_NATIVE", "1")
    return folder


def test_a_wheel_with_the_extension_is_for_one_platform(with_extension: Path) -> None:
    try:
        (path,) = WheelBuilder(str(with_extension)).build(directory=str(with_extension / "dist"))
    except RuntimeError as error:
        skip_or_fail("compiler", str(error))
    assert not path.endswith("-none-any.whl")
    with zipfile.ZipFile(path) as wheel:
        compiled = [name for name in wheel.namelist() if name.endswith(".so")]
    assert [name.partition(".")[0] for name in compiled] == [str(EXTENSION.with_suffix(""))]


def test_a_build_without_a_compiler_tells_the_remedy(
    with_extension: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(RuntimeError, match="Install a C compiler"):
        metadata(with_extension)
