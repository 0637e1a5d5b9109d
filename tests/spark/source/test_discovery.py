"""The modules that Spark imports when it looks for data sources."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("pyspark")


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_spark_finds_the_format_by_the_modules_name() -> None:
    """Spark looks for every importable module named `pyspark_*` with a `DefaultSource`."""
    program = """
        from importlib import import_module
        from pkgutil import iter_modules
        found = [info.name for info in iter_modules() if info.name.startswith("pyspark_")]
        print(*(import_module(name).DefaultSource.name() for name in found if name == "pyspark_sluicegate"))
    """
    assert run(program) == "sluicegate\n"


@pytest.mark.parametrize("missing", ["pyarrow", "numpy", "pyspark.sql.datasource"])
def test_where_something_is_missing_other_formats_are_still_found(missing: str) -> None:
    """Spark ignores all data sources if one module cannot be imported; the last case is PySpark
    3.5.
    """
    program = f"""
        import sys
        sys.modules[{missing!r}] = None
        import pyspark_sluicegate
        print(hasattr(pyspark_sluicegate, "DefaultSource"))
    """
    assert run(program) == "False\n"
