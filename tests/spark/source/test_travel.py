"""Errors for a sink that cannot be pickled, or cannot be unpickled on an executor."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle as pysparks

from penstock import Batch, NotPicklableError, stack
from penstock.spark import write_dataframe
from penstock.spark.values.travel import Traveller, description, load

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


def test_advice_comes_even_where_penstock_is_what_is_missing() -> None:
    """P-T13: the code that reports it is pickled by value."""
    program = """
        import sys
        from pyspark import cloudpickle
        sys.modules["penstock"] = None
        cloudpickle.loads(sys.stdin.buffer.read())
    """
    sent = cloudpickle.dumps(Traveller())
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        input=sent,
        capture_output=True,
        timeout=60,
        check=False,
    )
    said = done.stderr.decode().splitlines()[-1]
    assert said.startswith("ModuleNotFoundError: the module penstock")
    assert "Install the package" in said
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
        match=r"the module only_here is missing on an executor. Install .*addPyFile "
        r".*register_pickle_by_value",
    ):
        write_dataframe(spark.range(1), only_here.write)
    cloudpickle.register_pickle_by_value(only_here)
    try:
        assert write_dataframe(spark.range(3), only_here.write).delivered == 3
    finally:
        cloudpickle.unregister_pickle_by_value(only_here)
