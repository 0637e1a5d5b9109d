"""Sluicegate as two files for `spark-submit`: a zip for `--py-files`, and a program that runs
pipelines.

1. Executors import only from files whose names end in `.zip`, `.egg` or `.jar`; a wheel is none.
2. The zip has no compiled parts, which cannot be imported from it, and no dependencies.
3. The program has a folder of its own, because Python would import modules from next to it.
"""

from importlib.util import find_spec
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

_LEFT_OUT = {".pyc", ".so", ".pyd", ".c"}
_PROGRAM = '''"""Run the pipeline of a file, with the options of `sluicegate pipeline run`."""

import sys

from sluicegate.cli import main

sys.exit(main(["pipeline", "run", *sys.argv[1:]]))
'''


def write_package(folder: str) -> tuple[Path, Path]:
    """Write `sluicegate.zip` and `run_pipeline.py` to the folder; return their paths.

    Existing files of these names are replaced. Raises `OSError`.
    """
    into = Path(folder)
    into.mkdir(parents=True, exist_ok=True)
    code, program = into / "sluicegate.zip", into / "run_pipeline.py"
    with ZipFile(code, "w", ZIP_DEFLATED) as file:
        for name in ("sluicegate", "pyspark_sluicegate"):
            found = find_spec(name)
            for root in map(Path, found.submodule_search_locations or () if found else ()):
                for path in sorted(root.rglob("*")):
                    if path.is_file() and path.suffix not in _LEFT_OUT:
                        file.write(path, Path(name) / path.relative_to(root))
    program.write_text(_PROGRAM, encoding="utf-8")
    return code, program
