"""Comparison of this checkout with another revision: when it counts as slower, and that this is
detected.

No small difference in time is judged: with real processes the limit is so high, and the planted
slowness so large, that a busy machine makes no difference.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from benchmarks.compare import AGAIN, Pairs, Verdict, judge, main, row_of
from benchmarks.workers import SOURCES, WorkloadRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

EQUAL = Pairs([1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
SLOWER = Pairs([1.2, 1.2, 1.2], [1.0, 1.0, 1.0])
UNCLEAR = Pairs([1.0, 1.2, 1.2], [1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("here", "there", "slower"),
    [
        ([1.06, 1.06, 1.06], [1.0, 1.0, 1.0], True),
        ([1.04, 1.04, 1.04], [1.0, 1.0, 1.0], False),
        ([1.0, 2.0, 2.0], [1.0, 1.0, 1.0], False),  # disturbed, but as fast once
        ([1.0, 1.0, 1.0], [1.0, 1.0, 0.9], False),  # one fast turn there
        ([0.5, 0.5, 0.5], [1.0, 1.0, 1.0], False),
    ],
)
def test_slower_is_what_both_medians_and_least_say(
    here: list[float], there: list[float], slower: bool
) -> None:
    assert Pairs(here, there).is_slower(5.0) is slower


def measures(*found: Pairs) -> tuple[Iterable[Callable[[str], Pairs]], list[str]]:
    asked: list[str] = []

    def one(pairs: Pairs) -> Callable[[str], Pairs]:
        def measure(name: str) -> Pairs:
            asked.append(name)
            return pairs

        return measure

    return [one(pairs) for pairs in found], asked


@pytest.mark.parametrize(
    ("found", "times", "slower"),
    [
        ([EQUAL, SLOWER, SLOWER], 1, False),
        ([SLOWER, EQUAL, EQUAL], 3, False),
        ([SLOWER, EQUAL, SLOWER], 3, True),
        ([SLOWER, SLOWER, SLOWER], 3, True),
        ([UNCLEAR, SLOWER, SLOWER], 3, True),
        ([UNCLEAR, UNCLEAR, SLOWER], 3, False),
    ],
)
def test_what_seems_slower_is_measured_again_and_the_middle_counts(
    found: list[Pairs], times: int, slower: bool
) -> None:
    ways, asked = measures(*found)
    verdict = judge("work", ways, 5.0)
    assert asked == ["work"] * times
    assert verdict.is_slower(5.0) is slower
    assert ("SLOWER" in row_of(verdict, 5.0)[-1]) is slower


def test_work_that_a_revision_cannot_do_is_left_out_with_the_reason() -> None:
    def measure(name: str) -> Pairs:
        raise WorkloadRefusedError("no tenants yet")

    verdict = judge("work", [measure], 5.0)
    assert verdict == Verdict("work", (), "no tenants yet")
    assert not verdict.is_slower(5.0)
    assert verdict.said(5.0) == "left out: no tenants yet"


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the present library."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCES / "sluicegate", tmp_path / "src" / "sluicegate", ignore=ignored)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--no-gpg-sign", "-m", "as it is")
    return tmp_path


QUICK = ["--case", "add, batches of 500", "--share", "0.01", "--rounds", "3"]
PLANTED = """

def _slow(add):
    async def planted(self, *arguments, **settings):
        sum(range(5_000))
        return await add(self, *arguments, **settings)

    return planted


Batcher.add = _slow(Batcher.add)
"""


def plant(sources: Path) -> None:
    module = sources / "sluicegate" / "batcher" / "batcher.py"
    module.write_text(module.read_text() + PLANTED)


@pytest.mark.long
def test_a_revision_beside_itself_is_not_slower(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["HEAD", *QUICK, "--allow", "900"], repository) == 0
    assert "add, batches of 500: ok" in capsys.readouterr().out


@pytest.mark.long
def test_a_planted_slowness_fails_the_comparison(
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plant(repository / "src")
    monkeypatch.setattr("benchmarks.compare.SOURCES", repository / "src")
    assert main(["HEAD", *QUICK, "--allow", "900"], repository) == 1
    printed = capsys.readouterr().out
    assert f"SLOWER, measured {1 + AGAIN} times" in printed
    assert "more than 900 % slower: add, batches of 500" in printed


@pytest.mark.long
def test_work_that_this_checkout_cannot_do_is_no_reason_to_pass(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = repository / "src" / "sluicegate" / "__init__.py"
    package.write_text(package.read_text() + "\nRowBatch = None\n")
    monkeypatch.setattr("benchmarks.compare.SOURCES", repository / "src")
    name = "Retry, 500 items failing twice"
    assert main(["HEAD", "--case", name, *QUICK[2:]], repository) == 2
    assert f"this checkout cannot do {name!r}" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("revision", ["no-such-branch", "", "--help-me", "HEAD~99999"])
def test_a_revision_that_does_not_exist_is_named(
    revision: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--", revision] if revision.startswith("-") else [revision]
    assert main(arguments, repository) == 2
    assert f"{revision!r} is not a revision" in capsys.readouterr().err


@pytest.mark.long
def test_a_revision_without_the_library_is_refused(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(repository, "rm", "-r", "--quiet", "src")
    (repository / "README").write_text("nothing else")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--no-gpg-sign", "-m", "without")
    assert main(["HEAD"], repository) == 2
    assert "cannot compare" in capsys.readouterr().err
