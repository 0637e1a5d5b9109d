"""Dead letters in a topic written by `KafkaSink`, with the notes of replays in a second topic.

1. Each pass reads the topic up to its ends at its start. Partitions are merged by the time of their
   records, and the records are kept in memory for that. Nothing is committed.
2. Notes are records of `<topic>.replayed`, one for each letter, since a record has a limit of size;
   those of a step are one transaction. The first replay creates that topic; it has one partition,
   and keeps its records.
3. One replay or purge at a time: the next one claims the transactional id, so the notes of the one
   before are refused, and it stops before it sends anything more.
4. A topic can only lose records at its beginning. A purge therefore ends in each partition before
   the first record that is not to be removed.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as ClientPartition
from aiokafka import errors as kafka
from aiokafka.admin.records_to_delete import RecordsToDelete

from .._core.checks import bad
from .._core.clock import LOOP_CLOCK
from .._core.source import TopicPartition
from .._core.text import text_of
from .._core.values.encoding import to_json
from ..letters.letter import NoLetterError, letter_in
from ..letters.store import NotedStore, StoreError
from .access import KafkaAccess
from .client.errors import opening_error
from .client.internals import close_client
from .client.options import MAX_BATCH_BYTES, ProducerOptions
from .state.topic import REPLICAS, TopicAdmin, TopicRefused, committed_pages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping
    from types import TracebackType
    from typing import Self

    from ..letters.letter import Letter, Selection

_FORM = "must be kafka://HOST:PORT/TOPIC, with several hosts separated by commas"
_OPTIONS = ("security_protocol", "sasl_mechanism", "sasl_username", "ssl_cafile", "ssl_certfile", "ssl_keyfile")  # fmt: skip
_PASSWORDS = {"sasl_password": "KAFKA_SASL_PASSWORD", "ssl_password": "KAFKA_SSL_PASSWORD"}
_SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_TRANSACTION_TIMEOUT = 60.0
_PATIENCE = 30.0
_LONGEST_MESSAGE = 100_000
_FENCED = (kafka.ProducerFenced, kafka.InvalidProducerEpoch)


class KafkaStore(NotedStore):
    """A topic of dead letters, named by a URL; passwords come from the environment."""

    _unit = "record"

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        super().__init__()
        access, self._topic = _parsed(url, environment)
        self._place = f"{access.bootstrap}/{self._topic}"
        self._notes_topic = f"{self._topic}.replayed"
        self._options = ProducerOptions.of(
            access=access,
            compression=None,
            max_batch_bytes=MAX_BATCH_BYTES,
            idempotent=True,
            transaction_timeout=_TRANSACTION_TIMEOUT,
        )
        self._partitions = 0
        self._producer: Any = None

    async def __aenter__(self) -> Self:
        with self._errors():
            async with TopicAdmin.of(self._options) as admin:
                self._partitions = await admin.partitions(self._topic)
            if not self._partitions:
                raise StoreError(f"{self._place}: there is no such topic")
            await self._read_notes()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._producer is not None:
            await close_client(self._producer.stop(), self._options.close_timeout)

    async def letters(self, selection: Selection) -> AsyncGenerator[Letter]:
        """See `Store`."""
        early = self._notes.interrupted
        with self._errors():
            partitions = [await self._records(each) for each in range(self._partitions)]
        for is_early in (True, False) if early else (False,):
            self.unreadable.clear()
            self.unreadable.include(self._bad_notes)
            seen: set[str] = set()
            for record in heapq.merge(*partitions, key=attrgetter("timestamp")):
                letter = self._letter(record)
                if letter is None or letter.key in seen:
                    continue
                seen.add(letter.key)
                if (letter.key in early) is is_early and selection.has(letter):
                    yield letter

    async def hold(self) -> None:
        """See `Store`."""
        with self._errors():
            await self._prepare_notes()
            self._producer = AIOKafkaProducer(
                **self._options.arguments(),
                transactional_id=f"sluicegate dlq {self._topic}",
                transaction_timeout_ms=self._options.transaction_timeout_ms,
            )
            try:
                await self._producer.start()
            except Exception as error:
                raise opening_error(error, self._options.bootstrap) from error
            await self._read_notes()
        self._need_notes()

    async def purge(self, selection: Selection) -> int:
        """See `Store`. Raises `StoreError` if letters are selected, but none can be removed."""
        await self.hold()
        gone: set[str] = set()
        left: set[str] = set()
        ends: dict[Any, RecordsToDelete] = {}
        is_any = False
        with self._errors():
            for number in range(self._partitions):
                letters = [(record, self._letter(record)) for record in await self._records(number)]
                chosen = [each is not None and selection.has(each) for _, each in letters]
                is_any = is_any or any(chosen)
                length = chosen.index(False) if False in chosen else len(chosen)
                left.update(each.key for _, each in letters[length:] if each is not None)
                if length:
                    gone.update(each.key for _, each in letters[:length] if each is not None)
                    end = letters[length - 1][0].offset + 1
                    ends[ClientPartition(self._topic, number)] = RecordsToDelete(end)
            if is_any and not ends:
                raise StoreError(
                    f"{self._place}: a topic can only lose records at its beginning, and the first "
                    "record of each partition is not among the selected letters"
                )
            if ends:
                await self._delete(ends)
                gone -= left  # a letter that was stored twice keeps its notes
                await self._purge_notes(gone)
        return len(gone)

    # -- reading -----------------------------------------------------------------------------------

    async def _records(self, partition: int) -> list[Any]:
        where = TopicPartition(self._topic, partition)
        pages = committed_pages(self._options, where)
        return [record async for page in pages for record in page if record.value is not None]

    def _letter(self, record: Any) -> Letter | None:
        """Return the letter of a record with the notes on it; report one that is not a letter."""
        try:
            letter = letter_in(record.value)
        except NoLetterError as error:
            place = f"{self._topic}/{record.partition}@{record.offset}"
            self.unreadable.add(place, str(error))
            return None
        told = self._notes.told.get(letter.key)
        return letter if told is None else letter.after(told)

    # -- notes -------------------------------------------------------------------------------------

    async def _read_notes(self) -> None:
        self._forget_notes()
        async with TopicAdmin.of(self._options) as admin:
            if not await admin.partitions(self._notes_topic):
                return
        async for page in committed_pages(self._options, TopicPartition(self._notes_topic, 0)):
            for record in page:
                self._learn(record.value or b"", f"{self._notes_topic}@{record.offset}")

    async def _prepare_notes(self) -> None:
        async with TopicAdmin.of(self._options) as admin:
            if await admin.partitions(self._notes_topic):
                return
            replicas = min(REPLICAS, await admin.brokers())
            try:
                await admin.create(self._notes_topic, 1, replicas, _SETTINGS)
            except TopicRefused as error:
                settings = " ".join(f"--config {name}={value}" for name, value in _SETTINGS.items())
                command = f"kafka-topics.sh --create --topic {self._notes_topic} --partitions 1"
                raise StoreError(
                    f"the topic {self._notes_topic} of the notes of replays cannot be created "
                    f"({error}); create it by: {command} {settings}"
                ) from error
            give_up_at = LOOP_CLOCK.now() + _PATIENCE
            while not await admin.partitions(self._notes_topic):
                if LOOP_CLOCK.now() >= give_up_at:  # brokers know it later than the controller
                    raise StoreError(f"the topic {self._notes_topic} was created, but is not found")
                await LOOP_CLOCK.sleep(0.05)

    async def _store_note(self, content: bytes) -> None:
        note = json.loads(content)
        parts = [{"sending": [key]} for key in note.get("sending", ())]
        for ending in note.get("endings", ()):
            message = ending.get("message", "")[:_LONGEST_MESSAGE]
            parts.append({"endings": [{**ending, "message": message}]})
        await self._append(*(to_json({"replay": note["replay"], **part}) + b"\n" for part in parts))

    async def _append(self, *contents: bytes) -> int:
        """Store notes; return the offset of the first one."""
        if self._producer is None:
            raise StoreError("the store is not held")
        with self._errors():
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + _TRANSACTION_TIMEOUT):
                # after an error it stays open, until the next replay claims the transactional id
                await self._producer.begin_transaction()
                sent = [
                    await self._producer.send(self._notes_topic, each, partition=0)
                    for each in contents
                ]
                first, *_ = await asyncio.gather(*sent)
                await self._producer.commit_transaction()
        return int(first.offset)

    async def _purge_notes(self, gone: set[str]) -> None:
        """Replace all notes by those on the remaining letters."""
        left = self._notes.lines_without(gone).splitlines(keepends=True)
        empty = b'{"replay":null,"endings":[]}\n'
        first = await self._append(*(left or [empty]))
        await self._delete({ClientPartition(self._notes_topic, 0): RecordsToDelete(first)})
        await self._read_notes()

    async def _delete(self, ends: Mapping[Any, RecordsToDelete]) -> None:
        async with TopicAdmin.of(self._options) as admin:
            await admin.delete_records(ends)

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except _FENCED as error:
            raise StoreError(
                f"{self._place}: another replay or purge has begun meanwhile; run the command again "
                "when it has ended"
            ) from error
        except TimeoutError as error:
            raise StoreError(f"{self._place}: no answer in {_TRANSACTION_TIMEOUT:g} s") from error
        except kafka.KafkaError as error:
            raise StoreError(f"{self._place}: {text_of(error)}") from error


def _parsed(url: str, environment: Mapping[str, str]) -> tuple[KafkaAccess, str]:
    """Return the access and the topic of a URL. Raises `ConfigError`, which does not show it."""
    try:
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:
        raise bad("store", "kafka://...", _FORM) from None
    topic = parts.path.strip("/")
    if not parts.netloc or not topic or "/" in topic or "@" in parts.netloc or parts.fragment:
        raise bad("store", "kafka://...", _FORM)
    for name in given:
        if name not in _OPTIONS:
            passwords = " and ".join(_PASSWORDS.values())
            rule = f"is not one of {', '.join(_OPTIONS)}; passwords come from {passwords}"
            raise bad("store", f"kafka://...?{name}=...", rule)
    own: dict[str, Any] = {
        name: value for name, variable in _PASSWORDS.items() if (value := environment.get(variable))
    }
    secured = given.get("security_protocol", "")
    own = {name: value for name, value in own.items() if name[:3].upper() in secured}
    options: dict[str, Any] = {**given, **own}
    return KafkaAccess(parts.netloc, **options), topic
