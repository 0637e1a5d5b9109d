"""`penstock tune`: the arithmetic, the measurement, and the command."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.examples.example import DOCS, EXAMPLES, load

from penstock import Batch, Limits
from penstock.cli import main
from penstock.cli.tune.measure import Measurement, WriteFailed, item_bytes
from penstock.cli.tune.worksheet import (
    Measured,
    Needs,
    amount_of,
    as_code,
    enough,
    headline,
    memory,
    nearly_best,
    remarks,
    worksheet,
)

if TYPE_CHECKING:
    from penstock.testing import EmbeddedPostgres, FakeClock

PROGRAM = '''
import asyncio
from penstock import PermanentError

class Slow:
    """10 ms a write, nothing for an item."""
    async def write(self, batch):
        await asyncio.sleep(0.01)

class Narrow:
    async def write(self, batch):
        if len(batch) > 10:
            raise PermanentError("too wide")

class Deaf:
    async def write(self, batch):
        print("writing", flush=True)
        await asyncio.sleep(60)
    async def __aenter__(self):
        return self
    async def __aexit__(self, *error):
        print("closed", flush=True)

class OneAtATime:
    inside = 0
    async def write(self, batch):
        if self.inside:
            raise PermanentError("one at a time")
        self.inside += 1
        await asyncio.sleep(0.01)
        self.inside -= 1

async def loud(batch):
    print("loud")
    await asyncio.sleep(0.01)

class Stuck:
    """The third size never ends."""
    async def write(self, batch):
        await asyncio.sleep(60 if len(batch) == 100 else 0.01)
        if len(batch) == 10:
            print("ten", flush=True)

slow, narrow, one_at_a_time, stuck = Slow(), Narrow(), OneAtATime(), Stuck()

def deaf():
    return Deaf()

no_sink = 5

def item(number):
    return number, "x"

async def item_later(number):
    return number

def items(number):
    yield number

def no_item(number):
    raise ValueError("nothing")

def fifty(number):
    if number == 50:
        raise ValueError("no more")
    return number

def two_hundred(number):
    if number == 200:
        raise ValueError("no more")
    return number

def no_password():
    raise KeyError("PASSWORD")
'''


def measured(**seconds: float) -> list[Measured]:
    return [Measured(int(size.removeprefix("of_")), (each,)) for size, each in seconds.items()]


# -- the arithmetic --------------------------------------------------------------------------------


def test_the_example_of_the_worksheet() -> None:
    """batcher/B51: a knee at 500, 1,000 items a second and 50 ms give size 400, the delay equal to
    the budget, and two seconds of peak load in the ledger.
    """
    needs = Needs(rate=1000, latency=0.05)
    limits = worksheet(Measured(500, (0.3,)), needs)
    assert limits == Limits(
        max_items=400, max_delay=0.05, workers=1, max_pending_items=2000 + 400 * 2
    )
    told = remarks(
        [Measured(100, (0.2,)), Measured(500, (0.3,)), Measured(1000, (0.6,))],
        Measured(500, (0.3,)),
        limits,
        needs,
        workers_known=False,
    )
    assert told == [
        "at 1,000 items a second a batch is full after 0.4 s, so most are sealed by time, "
        "with about 50 items",
        "a write of 100 items alone takes 0.2 s, longer than an item may wait before it",
    ]


def test_a_budget_longer_than_a_batch_takes_to_fill_is_the_delay_too() -> None:
    """decisions 0.3, sizing worksheet. A peak beyond one worker needs more workers."""
    needs = Needs(rate=4000, latency=1.0, absorb=1.0)
    limits = worksheet(Measured(500, (0.3,)), needs)
    assert limits == Limits(
        max_items=400, max_delay=1.0, workers=3, max_pending_items=4000 + 400 * 4
    )
    told = "\n".join(
        remarks(measured(of_500=0.3), Measured(500, (0.3,)), limits, needs, workers_known=False)
    )
    assert "sealed by size" in told
    assert "gives up order" in told
    assert "--workers 1,3" in told


def test_the_peak_counts_for_workers_and_ledger_and_the_rate_for_the_filling() -> None:
    limits = worksheet(Measured(500, (0.3,)), Needs(rate=100, peak=4000, latency=1.0))
    assert (limits.workers, limits.max_pending_items) == (3, 8000 + 400 * 4)


def test_without_rate_and_latency_the_defaults_stand() -> None:
    assert worksheet(Measured(10, (0.01,)), Needs()) == Limits(max_items=8)
    assert worksheet(Measured(1, (0.01,)), Needs()) == Limits(max_items=1)


def test_measured_workers_are_taken_as_they_are() -> None:
    limits = worksheet(Measured(500, (0.3,)), Needs(rate=4000), workers=5)
    assert limits.workers == 5


def test_the_knee_is_the_smallest_size_with_nine_tenths_of_the_best() -> None:
    """batcher/B51."""
    flat = measured(of_1=0.1, of_10=0.1, of_95=0.1, of_100=0.1, of_1000=1.01)
    assert nearly_best(flat).size == 95
    assert headline(flat, nearly_best(flat), None) == "the knee is at 95 items"
    assert headline(flat, nearly_best(flat), 10_000) == "the knee is at 95 items"


def test_a_curve_that_still_rises_has_no_knee() -> None:
    """Its course beyond was not measured and is not claimed."""
    rising = measured(of_1=0.1, of_10=0.1)
    best = nearly_best(rising)
    assert headline(rising, best, None) == (
        "no knee: still rising at 10 items: try larger sizes with --sizes 10,30,100"
    )
    assert headline(rising, best, 100) == (
        "no knee: 10 items are the largest size that was accepted"
    )
    told = remarks(rising, best, Limits(max_items=8), Needs(), workers_known=False)
    assert told == ["the limits are for 10 items, the largest size measured"]
    one = measured(of_50=0.1)
    assert headline(one, nearly_best(one), None) == (
        "no knee: only 50 items were measured: try more sizes with --sizes"
    )


def test_the_median_counts() -> None:
    assert Measured(100, (0.1, 0.1, 9.0)).write == 0.1
    assert Measured(100, (0.1, 0.1, 9.0), 4).per_second == pytest.approx(4000)


def test_enough_workers() -> None:
    some = [
        Measured(100, (seconds,), workers)
        for workers, seconds in ((1, 0.1), (2, 0.1), (4, 0.11), (8, 0.22))
    ]
    assert enough(some, 1500).workers == 2
    assert enough(some, None).workers == 4
    assert enough(some, 1e6).workers == 4


def test_the_memory_of_a_full_ledger() -> None:
    """batcher/B50: (queue depth + size x (1 + flush queue + flushers)) x item size; the document's
    three examples.
    """
    assert (
        amount_of(memory(Limits(max_items=100, max_pending_items=1024 + 100 * 3), 4096))
        == "5.2 MiB"
    )
    assert (
        amount_of(memory(Limits(max_items=100, max_pending_items=1024 + 100 * 3), 2**20))
        == "1.3 GiB"
    )
    assert amount_of(memory(Limits(max_items=50, max_pending_items=1024 + 100), 8)) == "8.8 KiB"


def test_the_code_is_the_limits() -> None:
    limits = Limits(max_items=4000, max_delay=0.05, workers=2, max_pending_items=20_000)
    found: dict[str, Any] = {}
    exec(as_code(limits), {"Limits": Limits}, found)  # the printed command is meant to be run
    assert found["limits"] == limits


# -- the measuring ---------------------------------------------------------------------------------


class Fixed:
    """A write takes 0.1 s plus 1 ms per item; at most two run concurrently."""

    def __init__(self) -> None:
        self.items: list[object] = []
        self.lanes = asyncio.Semaphore(2)

    async def write(self, batch: Batch[Any]) -> None:
        async with self.lanes:
            await asyncio.sleep(0.1 + 0.001 * len(batch))
            self.items += batch


async def test_the_first_write_does_not_count_and_no_item_comes_twice(
    fake_clock: FakeClock,
) -> None:
    sink = Fixed()
    told: list[tuple[int, int, int]] = []
    measuring = Measurement(
        sink, lambda number: number, repeats=3, tell=lambda *one: told.append(one)
    )
    one = await measuring.size(100)
    assert one.seconds == pytest.approx((0.2, 0.2, 0.2))
    assert sink.items == list(range(400))
    assert told == [(100, done, 4) for done in (0, 1, 2, 3, 4)]
    assert (await measuring.workers(100, 2)).per_second == pytest.approx(1000)
    assert (await measuring.workers(100, 4)).per_second == pytest.approx(1000)
    assert len(set(sink.items)) == measuring.items == 400 * 7


async def test_a_write_that_fails_ends_the_measuring_and_leaves_no_task(
    fake_clock: FakeClock,
) -> None:
    async def refuse(batch: Batch[int]) -> None:
        if 0 in batch:
            raise ValueError("no")
        await asyncio.sleep(1000)

    class Sink:
        write = staticmethod(refuse)

    measuring = Measurement(Sink(), lambda number: number, repeats=3, tell=lambda *_: None)
    with pytest.raises(WriteFailed, match="a write of 1,000 items failed: ValueError: no"):
        await measuring.workers(1000, 2)
    assert fake_clock.now() == 0.0


def test_the_memory_of_an_item() -> None:
    small = item_bytes(lambda number: (number, "x"))
    assert 50 < small < 200
    assert item_bytes(lambda number: {"id": number, "body": "x" * 10_000}) > 10_000


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tuned.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("sink = (")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tuned", raising=False)
    return tmp_path


QUICK = ("--items", "tuned:item", "--repeats", "2", "--yes")


def test_it_measures_and_prints_limits(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """batcher/B51: a sink with a constant write time: the largest size is the best. The figures
    depend on the machine, their form does not.
    """
    plot = here / "out.svg"
    arguments = [
        "tune",
        "tuned:slow",
        *QUICK,
        "--sizes",
        "1,10,100",
        "--rate",
        "100",
        "--latency",
        "50ms",
        "--workers",
        "1,2",
        "--plot",
        str(plot),
    ]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert (
        "WARNING: this writes about 1,053 made-up items to the real destination of tuned:slow"
        in err
    )
    assert re.findall(r"^ +(\d+) +\d+\.\d\d +[\d,]+$", out, re.MULTILINE) == [
        "1",
        "10",
        "100",
        "1",
        "2",
    ]
    assert "no knee: still rising at 100 items: try larger sizes with --sizes 100,300,1000" in out
    assert (
        "    max_items=80,\n    max_delay=0.05,\n    workers=1,\n    max_pending_items=360,\n"
        in out
    )
    assert "- the limits are for 100 items, the largest size measured" in out
    assert re.search(
        r"- memory at worst: max_pending_items x size of an item = 360 x \d+ bytes = \d+\.\d KiB",
        out,
    )
    assert "<svg" in plot.read_text()
    assert "knee" not in plot.read_text()


def test_a_size_that_the_sink_refuses_ends_the_sizes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "tuned:narrow", *QUICK, "--sizes", "1,10,100,1000"]) == 0
    out, err = capsys.readouterr()
    assert "a write of 100 items failed: PermanentError: too wide; larger sizes are skipped" in err
    assert "no knee: 10 items are the largest size that was accepted" in out
    assert "limits = Limits(" in out


def test_json_is_one_document_and_nothing_else(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also with a sink that prints. Every figure names its unit."""
    sizes = ("--sizes", "1,10", "--workers", "1,2", "--rate", "100", "--json")
    assert main(["tune", "tuned:loud", *QUICK, *sizes]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["complete"] is True
    assert [(one["batch_items"], one["workers"]) for one in found["sizes"]] == [(1, 1), (10, 1)]
    assert [(one["batch_items"], one["workers"]) for one in found["workers"]] == [(8, 1), (8, 2)]
    assert all(
        0 < one["least_seconds"] <= one["median_seconds"] <= one["most_seconds"]
        for one in found["sizes"]
    )
    assert found["knee_items"] is None
    assert found["summary"].startswith("no knee: still rising at 10 items")
    assert found["written_items"] == 3 * (11 + 3 * 8)
    limits = worksheet(Measured(10, (0.01,)), Needs(rate=100), found["limits"]["workers"])
    assert found["limits"] == {
        "max_items": limits.max_items,
        "max_delay_seconds": limits.max_delay,
        "workers": limits.workers,
        "max_pending_items": limits.max_pending_items,
    }
    assert found["memory_bytes"] == found["limits"]["max_pending_items"] * found["item_bytes"]
    assert "loud" in err
    assert "ms a write" in err


def test_the_fields_of_the_document_are_documented(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "tuned:slow", *QUICK, "--sizes", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    page = (DOCS / "how-to" / "size-a-batcher.md").read_text()
    documented = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert {*found, *found["sizes"][0], *found["limits"]} == documented


def test_a_failure_after_the_sizes_leaves_them(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--sizes", "1,10", "--workers", "1,2", "--json")
    assert main(["tune", "tuned:one_at_a_time", *QUICK, *arguments]) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["complete"], len(found["sizes"]), len(found["workers"])) == (False, 2, 1)
    assert found["limits"] is found["knee_items"] is found["memory_bytes"] is None
    assert "best of the sizes measured: 10 items" in found["summary"]
    assert found["summary"] in err
    assert "a write of 8 items failed: PermanentError: one at a time" in err


@pytest.mark.parametrize(
    ("arguments", "told", "code"),
    [
        (["tuned", *QUICK], "'tuned' must be MODULE:NAME", 2),
        (["nowhere:slow", *QUICK], "'nowhere:slow': No module named 'nowhere'", 2),
        (["tuned:nothing", *QUICK], "'tuned:nothing': tuned has no nothing", 2),
        (["tuned:no_sink", *QUICK], "5", 2),
        (
            ["tuned:slow", "--items", "tuned:no_sink"],
            "'tuned:no_sink' must be a function that makes an item from a number, not 5",
            2,
        ),
        (
            ["tuned:slow", "--items", "tuned:no_item"],
            "could not make an item from the number 0: ValueError: nothing",
            2,
        ),
        (
            ["tuned:slow", "--items", "tuned:item_later"],
            "must be a plain function, not an async one",
            2,
        ),
        (["tuned:slow", "--items", "tuned:items"], "must return one item, not yield them", 2),
        (["tuned:slow", *QUICK, "--plot", "out.txt"], "must end in .svg or .png", 2),
        (["tuned:slow", *QUICK, "--plot", "nowhere/out.svg"], "there is no folder 'nowhere'", 2),
        (
            ["tuned:slow", "--items", "tuned:fifty"],
            "no item could be made from the number 50: ValueError: no more",
            1,
        ),
        (
            ["tuned:slow", "--items", "tuned:two_hundred", "--yes"],
            "no item could be made from the number 200: ValueError: no more",
            1,
        ),
        (
            ["tuned:no_password", *QUICK],
            "'tuned:no_password' could not make a sink: KeyError: 'PASSWORD'",
            2,
        ),
        (["broken:sink", *QUICK], "'broken:sink': importing broken failed: SyntaxError", 2),
        (
            ["tuned:slow", *QUICK, "--rate", "10", "--peak", "5"],
            "--peak 5: must be at least --rate 10",
            2,
        ),
        (
            ["tuned:narrow", *QUICK, "--sizes", "1,20", "--repeats", "1"],
            "a write of 20 items failed: PermanentError: too wide; larger",
            0,
        ),
        (
            ["tuned:narrow", *QUICK, "--sizes", "100"],
            "a write of 100 items failed: PermanentError: too wide",
            1,
        ),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    here: Path, arguments: list[str], told: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *arguments]) == code
    err = capsys.readouterr().err
    assert told in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--rate", "0"], "argument --rate: '0' must be a number of items per second, more than 0"),
        (
            ["--latency", "soon"],
            "argument --latency: 'soon' must be a time with its unit such as 50ms",
        ),
        (["--latency", "50"], "argument --latency: '50' must be a time with its unit such as 50ms"),
        (["--sizes", "1,x"], "argument --sizes: 'x' must be a whole number of at least 1"),
        (["--workers", "0"], "argument --workers"),
    ],
)
def test_wrong_arguments_are_told(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["tune", "a:b", "--items", "a:c", *arguments])
    assert caught.value.code == 2
    assert told in capsys.readouterr().err


def test_progress_is_shown_on_a_terminal(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From before the first write, which may be slow."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["tune", "tuned:slow", *QUICK, "--sizes", "10"]) == 0
    err = capsys.readouterr().err
    shown = [part.removesuffix("\x1b[K") for part in err.split("\r") if "writes done" in part]
    assert shown == [f"10 items: {done} of 3 writes done" for done in range(4)]


def test_it_asks_on_a_terminal(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return "\n"

    monkeypatch.setattr(sys, "stdin", Terminal())
    assert main(["tune", "tuned:slow", "--items", "tuned:item"]) == 2
    out, err = capsys.readouterr()
    assert err.endswith("Write them? [y/N] nothing was written\n")
    assert not out


def test_without_a_terminal_it_writes_only_with_yes(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["tune", "tuned:loud", "--items", "tuned:item", "--sizes", "1"]) == 2
    out, err = capsys.readouterr()
    assert err.endswith(
        "Write them? There is no terminal for the confirmation: add --yes to continue\n"
    )
    assert not out, "nothing was written"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_closes_the_sink(here: Path, number: signal.Signals, code: int) -> None:
    """It prints how much was written."""
    command = [sys.executable, "-m", "penstock.cli", "tune", "tuned:deaf", *QUICK]
    with subprocess.Popen(
        command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while process.stdout.readline() != "writing\n":
            assert process.poll() is None
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert out == "closed\n"
    told = "ended early; about 0 items were written; nothing was measured"
    assert err.splitlines()[-1] == told


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("arguments", [[], ["--json"]], ids=["text", "json"])
def test_an_interruption_leaves_what_was_measured(
    here: Path, number: signal.Signals, code: int, arguments: list[str]
) -> None:
    sizes = ("--sizes", "1,10,100", *arguments)
    command = [sys.executable, "-m", "penstock.cli", "tune", "tuned:stuck", *QUICK, *sizes]
    with subprocess.Popen(
        command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        printed = process.stderr if arguments else process.stdout
        assert printed is not None
        while not printed.readline().startswith("      10 "):
            assert process.poll() is None
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == code
    told = "best of the sizes measured: 10 items"
    assert told in err.splitlines()[-1]
    if arguments:
        found = json.loads(out)
        assert [one["batch_items"] for one in found["sizes"]] == [1, 10]
        assert (found["complete"], found["limits"]) == (False, None)
        assert told in found["summary"]


def test_a_real_table(
    embedded_postgres: EmbeddedPostgres,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The example of the how-to page."""
    import asyncpg

    async def execute(sql: str) -> Any:
        connection = await asyncpg.connect(embedded_postgres.dsn)
        try:
            return await connection.fetch(sql)
        finally:
            await connection.close()

    asyncio.run(execute("CREATE TABLE audit (id bigint PRIMARY KEY, action text NOT NULL)"))
    try:
        monkeypatch.setenv("DSN", embedded_postgres.dsn)
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.delitem(sys.modules, "tune_me", raising=False)
        assert (
            main(
                [
                    "tune",
                    "tune_me:sink",
                    "--items",
                    "tune_me:row",
                    "--sizes",
                    "1,100",
                    "--repeats",
                    "3",
                    "--yes",
                    "--rate",
                    "500",
                ]
            )
            == 0
        )
        ((rows,),) = asyncio.run(execute("SELECT count(*) FROM audit"))
        assert rows == 4 * 101
    finally:
        asyncio.run(execute("DROP TABLE audit"))
    assert "limits = Limits(" in capsys.readouterr().out


# -- where others start ----------------------------------------------------------------------------

TEN = {
    "AUDIT_LOG": (500, 1.0, 2048),
    "AUDIT_LOG_BY_COPY": (5000, 1.0, 8192),
    "METRICS_BY_UDP": (50, 0.1, 256),
    "CLICKSTREAM": (10_000, 0.005, 32_768),
    "WEBHOOKS": (100, 0.2, 1024),
    "PUSH_NOTIFICATIONS": (100, 1.0, 1024),
    "SEARCH_INDEX": (1000, 5.0, 4096),
    "TRACE_SPANS": (512, 5.0, 2048),
    "EMAIL_DIGEST": (1000, 3600.0, 65_536),
    "DATABASE_CHANGES": (5000, 0.1, 16_384),
}


def test_the_ten_presets() -> None:
    """batcher/B51, B50: size, delay and queue depth of ten kinds of work; the depth is translated
    to the ledger.
    """
    program = load("presets")
    presets = {name: value for name, value in vars(program).items() if isinstance(value, Limits)}
    assert presets == {
        name: Limits(max_items=size, max_delay=delay, max_pending_items=depth + size * (1 + 1))
        for name, (size, delay, depth) in TEN.items()
    }
    assert '--8<-- "examples/presets.py"' in (DOCS / "how-to" / "size-a-batcher.md").read_text()
