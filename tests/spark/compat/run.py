"""Runs `program.py` under every supported PySpark, each in its own environment. For `make compat`.

Arguments: the versions, as `3.5`; default: all. Environments are kept in `.venv/compat`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
VERSIONS = {
    "3.5": ("pyspark==3.5.*", "numpy<2", "pandas<2.3", "pyarrow<19"),
    "4.0": ("pyspark==4.0.*",),
    "4.1": ("pyspark==4.1.*",),
    "newest": ("pyspark",),
}


def made(name: str) -> Path:
    """The Python of an environment with this PySpark and the present Sluicegate."""
    home = ROOT / ".venv" / "compat" / name
    uv = str(ROOT / ".venv" / "bin" / "uv")
    if not home.exists():
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(home)], check=True)
    python = home / "bin" / "python"
    subprocess.run(
        [
            uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            str(python),
            "-e",
            f"{ROOT}[spark]",
            *VERSIONS[name],
        ],
        check=True,
    )
    return python


def main(names: list[str]) -> int:
    """Run all versions; return the number of failed ones."""
    strange = [name for name in names if name not in VERSIONS]
    if strange:
        sys.exit(f"no such version: {', '.join(strange)}; there are {', '.join(VERSIONS)}")
    failed = 0
    for name in names or VERSIONS:
        done = subprocess.run(
            [made(name), Path(__file__).with_name("program.py")], check=False, timeout=600
        )
        failed += done.returncode != 0
        sys.stdout.write(f"PySpark {name}: {'failed' if done.returncode else 'as it should be'}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
