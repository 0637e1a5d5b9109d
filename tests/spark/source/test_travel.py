"""Errors for a sink that cannot be pickled, or cannot be unpickled on an executor. White box: the
sink's description.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
import threading
import venv
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle as pysparks

from sluicegate import Batch, stack
from sluicegate.errors import NotPicklableError
from sluicegate.spark import write_dataframe
from sluicegate.spark.description import Traveller, description, load

if TYPE_CHECKING:
    from pathlib import Path

cloudpickle: Any = pysparks


class Holder:
    def __init__(self) -> None:
        self._parts = {"a": [1, threading.Lock()]}

    async def write(self, batch: Batch[Any]) -> None:
        """Do nothing."""


def closing_over(lock: Any) -> Any:
    def write(batch: Batch[Any]) -> None:
        with lock:
            pass

    return write


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        (Holder(), r"sink\.parts\['a'\]\[1\]=<unlocked _thread.lock"),
        (closing_over(threading.Lock()), r"sink\.write\.lock=<unlocked _thread.lock"),
        (Holder().write, r"sink\.parts\['a'\]\[1\]=<unlocked"),
        (stack(Holder(), lambda sink: sink), r"sink\.parts"),
    ],
)
def test_what_cannot_leave_is_named(sink: object, told: str) -> None:
    """P-T13: the error names the attribute, the element or the variable, not only the sink."""
    with pytest.raises(NotPicklableError, match=told):
        description(sink)


class Plain(Traveller):
    def __init__(self, number: int) -> None:
        self.number = number


def test_a_traveller_arrives_as_it_left() -> None:
    arrived = load(description(Plain(7)))
    assert (type(arrived), arrived.number) == (Plain, 7)


def test_advice_comes_even_where_sluicegate_is_what_is_missing() -> None:
    """P-T13: the code that reports it is pickled by value."""
    program = """
        import sys
        from pyspark import cloudpickle
        sys.modules["sluicegate"] = None
        cloudpickle.loads(sys.stdin.buffer.read())
    """
    sent = cloudpickle.dumps(Traveller())
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        input=sent,
        capture_output=True,
        timeout=150,
        check=False,
    )
    said = done.stderr.decode().splitlines()[-1]
    assert said.startswith("ModuleNotFoundError: the module sluicegate")
    assert f"whose Python is {sys.executable}. " in said
    assert "set the environment variable PYSPARK_PYTHON " in said
    assert "install the package" in said
    assert "addPyFile" in said
    assert "register_pickle_by_value" in said


@pytest.fixture
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that the driver can import but executors cannot."""
    (tmp_path / "only_here.py").write_text("def write(batch): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("only_here")
    sys.modules.pop("only_here")


@pytest.mark.long
def test_advice_comes_for_a_module_of_the_users(spark: Any, only_here: Any) -> None:
    """P-T13: three fixes are offered, and the third one works."""
    with pytest.raises(
        Exception,
        match=r"the module only_here is missing on an executor, whose Python is .*addPyFile "
        r".*register_pickle_by_value",
    ):
        write_dataframe(spark.range(1), only_here.write)
    cloudpickle.register_pickle_by_value(only_here)
    try:
        assert write_dataframe(spark.range(3), only_here.write).delivered == 3
    finally:
        cloudpickle.unregister_pickle_by_value(only_here)


ANOTHER_PYTHON = """
import sys, warnings
from pyspark.sql import SparkSession
from sluicegate.files import FileSink
from sluicegate.spark import register, write_dataframe

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name in ("host", "bindAddress"):
    builder = builder.config(f"spark.driver.{name}", "127.0.0.1")
spark = builder.getOrCreate()
sink = FileSink(sys.argv[1], per_process=True)
try:
    write_dataframe(spark.range(1), sink)
except Exception as error:
    print(str(error).replace("\\n", " "))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    register(spark, "mine", sink)
print(*[each.message for each in caught])
spark.stop()
"""


@pytest.mark.long
def test_the_wrong_python_of_a_local_session_is_named(tmp_path: Path) -> None:
    """P-T13: an environment that is not activated, so that Spark runs the `python3` of the PATH."""
    venv.create(tmp_path / "other", with_pip=False)
    other = tmp_path / "other" / "bin"
    environment = {**os.environ, "PATH": f"{other}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_PYTHON, str(tmp_path / "rows.jsonl")],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    failed, warned = done.stdout.splitlines()[-2:]
    assert (
        f"the module sluicegate is missing on an executor, whose Python is {other}/python3"
        in failed
    )
    assert "set the environment variable PYSPARK_PYTHON " in failed
    assert warned.startswith(f"Spark runs {other}/python3, which cannot import sluicegate, ")
    assert f"PYSPARK_PYTHON={sys.executable}" in warned
