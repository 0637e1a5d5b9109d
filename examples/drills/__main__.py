"""Run drills: `python -m examples.drills NAME...`, in the checkout's folder."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import tempfile
from pathlib import Path

from sluicegate.testing import embedded_postgres

from . import NAMES
from .drill import Drill


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.drills", description=__doc__)
    parser.add_argument("name", nargs="+", choices=NAMES)
    parser.add_argument("--slow", action="store_true", help="at human speed: 21 minutes each")
    options = parser.parse_args()
    for name in options.name:
        with embedded_postgres() as server, tempfile.TemporaryDirectory() as folder:
            drill = Drill(server, Path(folder), slow=options.slow)
            asyncio.run(importlib.import_module(f"{__package__}.{name}").run(drill))


if __name__ == "__main__":
    main()
