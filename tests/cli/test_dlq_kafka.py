"""Dead letters in a topic of Kafka.

White box: the store of a topic, held twice.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from tests.cli.dlq_help import Cli, keep, module, record

from sluicegate import ConfigError, RowBatch, send
from sluicegate.kafka import KafkaSink
from sluicegate.kafka.letters import KafkaStore
from sluicegate.letters.letter import Selection
from sluicegate.letters.store import StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")
SINK = """
import os
from sluicegate import *

async def sink(batch):
    bad = {at: PermanentError("refused") for at, item in enumerate(batch)
           if item["n"] == 2 and not os.path.exists("repaired")}
    with open("sent", "a") as file:
        for at, item in enumerate(batch):
            if at not in bad:
                print(item["n"], file=file)
    return WriteResult.failed(batch, bad)
"""


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module(tmp_path, "topic_sinks", SINK)
    return Cli(capsys)


@pytest.fixture
def topic(broker: EmbeddedKafka) -> str:
    name = f"dead-{os.urandom(4).hex()}"
    broker.create_topic(name, partitions=2)
    return name


def filled(broker: EmbeddedKafka, topic: str, *numbers: int) -> str:
    """A topic with these letters, and its URL."""
    letters = [record(number, item_key="k" if number else None) for number in numbers]
    sink = KafkaSink(
        topic, bootstrap=broker.bootstrap, partition=lambda each: int(each.key[-1]) % 2
    )
    keep(sink, letters)
    return f"kafka://{broker.bootstrap}/{topic}"


def test_letters_of_a_topic_are_listed_shown_replayed_and_purged(
    cli: Cli, broker: EmbeddedKafka, topic: str, tmp_path: Path
) -> None:
    """The topic is only read; the notes of replays are in a topic beside it."""
    store = filled(broker, topic, 0, 1)
    for number in (2, 3, 4):
        filled(broker, topic, number)
    assert cli.keys(store) == [0, 1, 2, 3, 4]
    assert cli.keys(store, "--message", "no 3") == [3]
    assert json.loads("\n".join(cli("show", store, "key-0001")))["item"] == {"n": 1}
    cli("replay", store, "--to", "topic_sinks:sink", code=1)
    assert cli.err.splitlines()[0] == "replayed: 2 delivered, 1 rejected, 2 held back"
    assert cli.keys(store) == [2, 3, 4]
    assert cli.letters(store)[0]["message"] == "refused"
    (tmp_path / "repaired").touch()
    cli("replay", store, "--to", "topic_sinks:sink")
    assert cli.err == "replayed: 3 delivered\n"
    assert (tmp_path / "sent").read_text().split() == ["0", "1", "2", "3", "4"]
    assert cli.keys(store) == []
    filled(broker, topic, 5)
    cli("purge", store)
    assert cli.err == "removed 5 dead letters\n"
    assert cli.keys(store, "--state", "all") == [5]
    filled(broker, topic, 1)
    assert cli.keys(store) == [5, 1], "its notes were removed with the first one"


def test_a_topic_loses_letters_at_its_beginning_only(
    cli: Cli, broker: EmbeddedKafka, topic: str
) -> None:
    store = filled(broker, topic, 0, 2, 4)
    cli("purge", store, "--state", "all", "--letter", "key-0002", "--yes", code=2)
    assert "a topic can only lose records at its beginning" in cli.err
    cli("purge", store, "--state", "all", "--letter", "key-0000", "--letter", "key-0004", "--yes")
    assert cli.err == "removed 1 dead letters\n"
    assert cli.keys(store) == [2, 4]


def test_a_letter_stored_twice_stays_replayed_until_its_last_record_is_purged(
    cli: Cli, broker: EmbeddedKafka, topic: str, tmp_path: Path
) -> None:
    store = filled(broker, topic, 0, 2, 4)
    filled(broker, topic, 0)
    (tmp_path / "repaired").touch()
    cli("replay", store, "--to", "topic_sinks:sink", "--letter", "key-0000")
    cli("purge", store)
    assert cli.err == "removed 0 dead letters\n"
    assert cli.keys(store) == [2, 4]
    cli("replay", store, "--to", "topic_sinks:sink")
    assert (tmp_path / "sent").read_text().split() == ["0", "2", "4"]
    cli("purge", store)
    assert cli.err == "removed 3 dead letters\n"


def test_the_notes_of_a_batch_may_be_larger_than_a_record(
    cli: Cli, broker: EmbeddedKafka, topic: str, tmp_path: Path
) -> None:
    module(tmp_path, "long_sinks", SINK.replace('"refused"', '"long" * 400_000'))
    store = filled(broker, topic, 2, 4)
    cli("replay", store, "--to", "long_sinks:sink", code=1)
    assert cli.keys(store, "--state", "pending") == [2, 4]
    assert cli.letters(store)[0]["message"] == ("long" * 400_000)[:100_000]
    (tmp_path / "repaired").touch()
    cli("replay", store, "--to", "long_sinks:sink")
    assert cli.keys(store, "--state", "replayed") == [2, 4]


async def test_many_notes_are_kept_by_a_purge(
    broker: EmbeddedKafka, topic: str, real_clock: LoopClock
) -> None:
    """In one transaction, whose time is limited."""
    sink = KafkaSink(topic, bootstrap=broker.bootstrap, partition=lambda _: 0)
    async with sink:
        assert await send(sink, RowBatch([record(0), record(1)])) == {}
    url = f"kafka://{broker.bootstrap}/{topic}"
    async with KafkaStore(url, {}) as store:
        await store.hold()
        others = [f"other-{number:06}" for number in range(50_000)]
        await store.begin("r", ["key-0000", "key-0001", *others])
    async with KafkaStore(url, {}) as store:
        assert await store.purge(Selection(letters=("key-0000",))) == 1
    async with KafkaStore(url, {}) as store:
        assert [each.state async for each in store.letters(Selection())] == ["interrupted"]


def test_a_name_that_is_no_topic_is_refused(cli: Cli, broker: EmbeddedKafka, topic: str) -> None:
    cli("list", f"kafka://{broker.bootstrap}/nowhere", code=2)
    assert "there is no such topic" in cli.err
    for url in ("kafka://u:hush@b/t", "kafka://b:9092", "kafka://b/t?sasl_password=hush"):
        cli("list", url, code=2)
        assert "hush" not in cli.err
        assert "kafka://" in cli.err
    cli("init", f"kafka://{broker.bootstrap}/{topic}")
    assert "nothing to do" in cli.err


async def test_a_second_replay_ends_the_first(
    broker: EmbeddedKafka, topic: str, real_clock: LoopClock
) -> None:
    """The first one cannot note anything more, so it sends nothing more."""
    sink = KafkaSink(topic, bootstrap=broker.bootstrap)
    async with sink:
        assert await send(sink, RowBatch([record(0)])) == {}
    url = f"kafka://{broker.bootstrap}/{topic}"
    async with KafkaStore(url, {}) as one, KafkaStore(url, {}) as two:
        with pytest.raises(StoreError, match="not held"):
            await one.begin("r", ["key-0000"])
        await one.hold()
        await one.begin("r", ["key-0000"])
        await two.hold()
        assert [each.state async for each in two.letters(Selection())] == ["interrupted"]
        await two.begin("s", ["key-0000"])
        with pytest.raises(StoreError, match="another replay or purge has begun"):
            await one.begin("t", ["key-0000"])
    with pytest.raises(ConfigError, match="passwords come from KAFKA_SASL_PASSWORD"):
        KafkaStore("kafka://b/t?password=x", {})
