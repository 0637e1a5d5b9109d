"""Rows from Spark's executors to PostgreSQL's COPY inside the JVM: a prototype, compiled for the
measurement.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .jdbc import jdbc_options

if TYPE_CHECKING:
    from collections.abc import Generator

SOURCE = Path(__file__).with_name("CopyWriter.java")


@contextlib.contextmanager
def jar() -> Generator[list[str]]:
    """Return the path of the compiled writer's jar; `None` without a Java compiler."""
    if shutil.which("javac") is None or shutil.which("jar") is None:
        yield []
        return
    with tempfile.TemporaryDirectory() as folder:
        yield [str(_compiled(Path(folder)))]


def is_loaded(spark: Any) -> bool:
    """Return whether Spark's JVM was started with that jar."""
    from py4j.java_gateway import JavaClass

    return isinstance(_writer(spark), JavaClass)


def append(df: Any, dsn: str, table: str) -> None:
    """Append the rows, one COPY per partition."""
    options = jdbc_options(dsn)
    _writer(df.sparkSession).append(
        df._jdf, options["url"], options["user"], options["password"], table
    )


def _writer(spark: Any) -> Any:
    return spark._jvm.sluicegate.benchmarks.CopyWriter  # there is no other access to Java


def _compiled(folder: Path) -> Path:
    import pyspark

    from sluicegate.spark import connector_jars

    jars = f"{Path(pyspark.__file__).parent / 'jars'}/*:{connector_jars('postgresql')}"
    classes, target = folder / "classes", folder / "copy-writer.jar"
    command = ["javac", "-nowarn", "-cp", jars, "-d", str(classes), str(SOURCE)]
    subprocess.run(command, check=True, timeout=120.0)
    subprocess.run(["jar", "cf", str(target), "-C", str(classes), "."], check=True, timeout=60.0)
    return target
