"""The program of a Java server: compiled once per source and class path, or run by `java` directly.
White box: the compilation.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicegate.testing.servers.java import program_of

COMPILES = """#!/bin/sh
echo once >> "$CALLS"
while [ "$1" != -d ]; do shift; done
mkdir "$2" && touch "$2/Some.class"
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source file, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    source = tmp_path / "Some.java"
    source.write_text("class Some {}")
    return source


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "one-1.jar").touch()
    return folder


def java(folder: Path, program: str) -> str:
    made = folder / "java"
    made.write_text(program)
    made.chmod(0o755)
    return str(made)


def test_a_program_is_compiled_once_for_each_source_and_class_path(
    source: Path, jars: Path, tmp_path: Path
) -> None:
    compiler = java(tmp_path, COMPILES)
    command = program_of(compiler, source, jars)
    option, path, name = command
    classes, others = path.split(":")
    assert (option, others, name) == ("-cp", f"{jars}/*", "Some")
    assert Path(classes).is_relative_to(tmp_path / "cache" / "sluicegate")
    assert [each.name for each in Path(classes).iterdir()] == ["Some.class"]
    assert program_of(compiler, source, jars) == command
    source.write_text("class Some { int changed; }")
    changed = program_of(compiler, source, jars)
    (jars / "one-1.jar").rename(jars / "one-2.jar")
    assert len({command[1], changed[1], program_of(compiler, source, jars)[1]}) == 3
    assert (tmp_path / "calls").read_text() == "once\n" * 3


@pytest.mark.parametrize("program", ["#!/bin/sh\nexit 1\n", "no program"])
def test_without_a_compiler_java_gets_the_source_and_nothing_is_kept(
    source: Path, jars: Path, tmp_path: Path, program: str
) -> None:
    assert program_of(java(tmp_path, program), source, jars) == ["-cp", f"{jars}/*", str(source)]
    assert [each.suffix for each in (tmp_path / "cache" / "sluicegate").iterdir()] == [".lock"]


def test_without_a_cache_java_gets_the_source(source: Path, jars: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    compiler = java(tmp_path, COMPILES)
    assert program_of(compiler, source, jars) == ["-cp", f"{jars}/*", str(source)]
