"""The pages of dead letters. White box: the item of a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.dlq_help import record
from tests.console.console_help import browsing
from tests.console.contents import KINDS, keep, letters

from sluicegate import ConfigError, Message, PermanentError, WriteResult
from sluicegate.console import Console, LetterStore
from sluicegate.letters.items import item_of_record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sluicegate import Batch

pytestmark = pytest.mark.usefixtures("real_clock")


async def test_letters_are_counted_by_error_and_listed_in_pages(tmp_path: Path) -> None:
    path = await keep(tmp_path / "dead.jsonl", letters(120))
    async with browsing(letters=[LetterStore(path, name="audit")]) as browser:
        assert "audit file 120 permanent NotNullViolationError: 40" in await browser.text("stores")
        text = await browser.text("letters", store="audit")
        assert "permanent NotNullViolationError 40 refused AccessError 40" in text
        seen: list[str] = []
        page: list[str] = ["letters?store=audit"]
        while page:
            seen += await browser.links(page[0], "letter?")
            page = await browser.links(page[0], "letters?")
            page = [each for each in page if "after=" in each]
        assert [each.rpartition("key-")[2] for each in seen] == [f"{n:04}" for n in range(120)]


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({"error_class": "refused"}, 2),
        ({"error_type": "ReadTimeout"}, 2),
        ({"key": "k5"}, 1),
        ({"batcher": "other"}, 0),
        ({"since": "2026-01-31T12:04"}, 2),
        ({"until": "2026-01-31T12:01"}, 1),
        ({"state": "replayed"}, 0),
        ({"state": "all"}, 6),
    ],
)
async def test_a_filter_selects_letters(
    tmp_path: Path, filters: dict[str, str], count: int
) -> None:
    path = await keep(tmp_path / "dead.jsonl", letters(6))
    async with browsing(letters=[LetterStore(path, name="audit")]) as browser:
        assert len(await browser.links("letters", "letter?", store="audit", **filters)) == count
        question = await browser.text("act", do="purge-letters", store="audit", **filters)
        assert f"Remove {count} dead letters" in question


async def test_a_payload_is_shown_as_text_when_it_is_asked_for(tmp_path: Path) -> None:
    path = await keep(tmp_path / "dead.jsonl", letters(1))
    async with browsing(letters=[path]) as browser:
        query: dict[str, Any] = {"store": str(path), "letter": "key-0000"}
        assert "onerror" not in (await browser.get("letter", **query)).text.partition("Payload")[2]
        assert "Maybe delivered no" in await browser.text("letter", **query)
        shown = (await browser.get("letter", payload=1, **query)).text
        assert "<img" not in shown
        assert "&lt;img src=x onerror=alert(1)&gt;" in shown.partition("Payload")[2]


async def test_letters_are_sent_again_and_those_that_fail_stay(tmp_path: Path) -> None:
    path = await keep(tmp_path / "dead.jsonl", letters(6))
    sent: list[Any] = []

    async def write(batch: Batch[Any]) -> WriteResult:
        sent.extend(item["n"] for item in batch if item["n"] != 3)
        errors = {at: PermanentError("still") for at, item in enumerate(batch) if item["n"] == 3}
        return WriteResult.failed(batch, errors)

    async with browsing(letters=[LetterStore(path, name="audit", sink=write)]) as browser:
        query: dict[str, Any] = {"store": "audit", "error_class": "permanent"}
        question = await browser.text("act", do="replay-letters", **query)
        assert "Send 2 dead letters of audit with error class permanent again?" in question
        done = (await browser.do("replay-letters", **query))[1]
        assert "audit: replayed: 1 delivered, 1 rejected." in done
        assert "PermanentError" in done
        assert sent == [0]
        await browser.do("replay-letters", store="audit", letter="key-0001")
        assert sent == [0, 1]
        assert "Send 4 dead letters" in await browser.text(
            "act", do="replay-letters", store="audit"
        )
        assert "replayed" in await browser.text("letters", store="audit", state="replayed")


async def test_letters_of_a_consumer_are_handled_again(tmp_path: Path) -> None:
    found: list[Any] = []

    async def handle(message: Message) -> None:
        found.append(message.value)

    letter = record(0, item=item_of_record(_Source()))
    path = await keep(tmp_path / "dead.jsonl", [letter])
    async with browsing(letters=[LetterStore(path, name="x", handler=handle)]) as browser:
        assert "1 delivered" in (await browser.do("replay-letters", store="x"))[1]
    assert found == [b"v"]


class _Source:
    topic, partition, offset, key, value, timestamp = "t", 0, 1, b"k", b"v", 1
    headers: Sequence[tuple[str, bytes]] = ()


async def test_without_a_target_the_command_is_shown(tmp_path: Path) -> None:
    path = await keep(tmp_path / "dead.jsonl", letters(1))
    async with browsing(letters=[path]) as browser:
        text = await browser.text("letters", store=str(path))
        assert f"sluicegate dlq replay {path} --to MODULE:NAME" in text
        assert "nothing to change" in await browser.text(
            "act", do="replay-letters", store=str(path)
        )


async def test_letters_that_arrive_after_the_question_are_kept(tmp_path: Path) -> None:
    path = await keep(tmp_path / "dead.jsonl", letters(2))
    async with browsing(letters=[LetterStore(path, name="audit")]) as browser:
        _, form = await browser.ask("purge-letters", store="audit")
        assert "until=" in form["fields"]
        done = (await browser.do("purge-letters", store="audit", until="2026-01-31T12:01"))[1]
        assert "1 dead letters of audit were removed." in done
        assert len(await browser.links("letters", "letter?", store="audit")) == 1


async def test_a_broken_store_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    path = await keep(tmp_path / "dead.jsonl", letters(1))
    gone = "postgresql://user:hunter2@127.0.0.1:1/none"
    async with browsing(letters=[path, gone]) as browser:
        text = await browser.text("stores")
        assert "unavailable" in text
        assert "127.0.0.1:1" in text
        assert f"{path} file 1" in text
        assert "hunter2" not in (await browser.get("stores")).text
        name = LetterStore(gone).name
        assert "hunter2" not in name
        assert "Not possible" in await browser.fails(409, "letters", store=name)
        await browser.fails(404, "letters", store="other")
        await browser.fails(404, "letter", store=str(path), letter="other")
        await browser.fails(400, "letters", store=str(path), since="soon")


@pytest.mark.parametrize(
    ("store", "name"),
    [
        ("postgresql://u:hunter2@h:5432/x?sslmode=require", "postgresql://h:5432/x"),
        ("postgresql://h/x?password=hunter2", "postgresql://h/x"),
    ],
)
def test_a_store_is_named_by_its_place_without_a_password(store: str, name: str) -> None:
    assert LetterStore(store).name == name


def test_bad_stores_are_refused() -> None:
    with pytest.raises(ConfigError, match="letters"):
        Console(letters="dead.jsonl")
    with pytest.raises(ConfigError, match="letters"):
        Console(letters=["dead.jsonl", "dead.jsonl"])
    with pytest.raises(ConfigError, match="handler"):
        LetterStore("dead.jsonl", sink=print, handler=print)
    with pytest.raises(ConfigError, match="store"):
        LetterStore("mysql://user:hunter2@x")
    with pytest.raises(ConfigError, match="store"):
        LetterStore(3)  # type: ignore[arg-type]
    assert "hunter2" not in repr(LetterStore("postgresql://user:hunter2@x/y"))
    assert {kind for kind, _ in KINDS} == {"permanent", "refused", "unknown"}
