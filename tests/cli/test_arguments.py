"""The command line without a database: required and refused arguments."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sluicegate
from sluicegate.cli import main


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["queue", "create", "postgresql://h/d", "q", "--key-rate", "fast"],
            "argument --key-rate: 'fast' must be a number of jobs per second, or none",
        ),
    ],
)
def test_wrong_use_is_told_with_exit_code_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is started."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert "usage:" in error
    assert told in error


def test_the_version_is_the_one_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"sluicegate {sluicegate.__version__}\n"


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("asyncpg", ["dlq", "init", "postgresql://x"], "postgres"),
    ],
)
def test_a_package_that_is_missing_is_named_in_one_line(
    package: str, arguments: list[str], extra: str
) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None; from sluicegate.cli import main; "
        f"sys.exit(main({arguments!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert f"needs the package {package}, which is not installed; the extra {extra!r} " in line
    assert line.endswith(f'pip install "sluicegate[{extra}]"')
    assert not done.stdout


@pytest.mark.parametrize(
    ("command", "poison"),
    [
        ("create", "cannot be handled (default: park_key; with --ordering-required block)"),
        ("alter", "cannot be handled\n"),
    ],
)
def test_only_a_command_with_defaults_names_them(
    command: str, poison: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`queue alter` keeps settings that are not given."""
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["queue", command, "--help"])
    assert poison in capsys.readouterr().out
