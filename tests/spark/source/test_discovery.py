"""The modules that Spark imports when it looks for data sources."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark")


PROGRAM = """
import sys
from importlib import import_module
from pkgutil import iter_modules

found = [info.name for info in iter_modules() if info.name == "pyspark_sluicegate"]
print(*(import_module(name).DefaultSource.name() for name in found))
for missing in ("pyarrow", "numpy", "pyspark.sql.datasource"):
    for name in [each for each in sys.modules if "sluicegate" in each]:
        del sys.modules[name]
    kept, sys.modules[missing] = sys.modules[missing], None
    print(hasattr(import_module("pyspark_sluicegate"), "DefaultSource"))
    sys.modules[missing] = kept
"""


def test_spark_finds_the_format_and_others_where_something_is_missing() -> None:
    """Spark looks for every importable module named `pyspark_*` with a `DefaultSource`, and ignores
    all data sources if one module cannot be imported. The last missing module is that of PySpark
    3.5.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.stdout.split() == ["sluicegate", "False", "False", "False"], done.stderr
