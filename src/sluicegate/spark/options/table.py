"""The options of `format("sluicegate")`: their names, values and meaning, in one table.

1. Names follow Spark's spelling, and are compared without case, since Spark lowers them.
2. A name that is not in the table, or has no meaning for the chosen sink, is an error that lists
   similar names. Only options that Spark itself adds are ignored.
3. A wrong value is an error with the option, the value and the rule; values of secrets are never
   shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from ..._core.checks import bad

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KINDS = ("postgres", "http", "elasticsearch", "kafka", "nats", "file")
POSTGRES, HTTP, ELASTICSEARCH, KAFKA, NATS, FILE = KINDS
RAISE = "raise"
AT_LEAST_ONCE = "at_least_once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: its entry in the documentation, and the reader of its text."""

    name: str
    read: Callable[[str, str], Any]
    """Reads the value from the option's name and text."""
    meaning: str
    default: str = ""
    sinks: tuple[str, ...] = KINDS
    is_secret: bool = False


def _text(name: str, value: str) -> str:
    if not value.strip() or "\0" in value:
        raise bad(name, value, "must not be empty")
    return value


def _names(name: str, value: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in value.split(","))
    if not all(found) or len(set(found)) != len(found):
        raise bad(name, value, "must be comma-separated names without duplicates")
    return found


def _count(least: int) -> Callable[[str, str], int]:
    def read(name: str, value: str) -> int:
        number = int(value) if value.isdecimal() else -1
        if number < least:
            raise bad(name, value, f"must be a whole number of at least {least}")
        return number

    return read


def _flag(name: str, value: str) -> bool:
    if value.lower() not in {"true", "false"}:
        raise bad(name, value, "must be true or false")
    return value.lower() == "true"


def _choice(*allowed: str) -> Callable[[str, str], str]:
    def read(name: str, value: str) -> str:
        if value.lower() not in allowed:
            raise bad(name, value, "must be one of " + ", ".join(allowed))
        return value.lower()

    return read


def _delivery(name: str, value: str) -> str:
    if value.lower() != AT_LEAST_ONCE:
        rule = (
            f"a Python data source can only be {AT_LEAST_ONCE}: it cannot make Spark "
            "bring the rows of a key together. "
            "Use write_dataframe or foreach_batch, which have delivery="
        )
        raise bad(name, value, rule)
    return AT_LEAST_ONCE


_BY_URL = (POSTGRES, HTTP, ELASTICSEARCH, NATS)
_BY_NETWORK = (POSTGRES, HTTP, ELASTICSEARCH, KAFKA, NATS)
_BROKERS = (KAFKA, NATS)

WRITING = (
    Option(name="batchSize", read=_count(1), default="50000", meaning="maximum number of rows in one write"),
    Option(name="batchBytes", read=_count(1), default="8388608", meaning="approximate maximum size of one write in bytes"),
    Option(name="maxInFlight", read=_count(1), default="4; 1 for an upsert without `versionColumn`, for `kafka` and for `nats`", meaning="concurrent writes of one task"),
    Option(
        name="maxDeadLetters",
        read=_count(0),
        default="0",
        meaning="rows that may fail for good without a dead-letter sink before the write fails",
    ),
    Option(
        name="check",
        read=_flag,
        default="true",
        meaning="open the sink once on the driver before a batch is written, so that a wrong address or table fails early; `false` if only "
        "the executors can reach it",
    ),
)  # fmt: skip
"""Options that also apply to formats made by `register`."""

_BROKERS_COLUMNS = (
    (
        "keyColumn",
        "no key",
        "the records' keys: bytes and text as they are, others as JSON",
        (KAFKA,),
    ),
    ("valueColumn", "the row as JSON", "the records' values: bytes or text", _BROKERS),
    (
        "headersColumn",
        "none",
        "the headers: `ARRAY<STRUCT<key: STRING, value: BINARY>>` or `MAP<STRING, BINARY>`",
        _BROKERS,
    ),
    (
        "timestampColumn",
        "the time of sending",
        "the records' times: `TIMESTAMP`, or milliseconds",
        (KAFKA,),
    ),
    (
        "partitionColumn",
        "by the key",
        "the partitions' numbers; NULL leaves it to the key",
        (KAFKA,),
    ),
    ("topicColumn", "", "the topics; in place of `topic`", (KAFKA,)),
    ("subjectColumn", "", "the subjects; in place of `subject`", (NATS,)),
    (
        "messageIdColumn",
        "one for each write",
        "the ids by which a stream recognizes a repeated message: text or a whole number",
        (NATS,),
    ),
)

OPTIONS = (
    Option(
        name="sink",
        read=_choice(*KINDS),
        default=POSTGRES,
        meaning=", ".join(f"`{kind}`" for kind in KINDS),
    ),
    Option(
        name="url",
        read=_text,
        meaning="`postgresql://...` or `jdbc:postgresql://...`; for `http` and `elasticsearch` "
        "the endpoint, for `nats` `nats://host:4222`, or several, comma-separated. Never shown",
        sinks=_BY_URL,
        is_secret=True,
    ),
    Option(
        name="dsn",
        read=_text,
        meaning="another name for `url`. Never shown",
        sinks=(POSTGRES,),
        is_secret=True,
    ),
    Option(
        name="user", read=_text, meaning="the user; overrides the one in `url`", sinks=_BY_NETWORK
    ),
    Option(
        name="password",
        read=_text,
        meaning="the password; overrides the one in `url`. Never shown",
        sinks=_BY_NETWORK,
        is_secret=True,
    ),
    Option(
        name="dbtable",
        read=_text,
        meaning='`table` or `schema.table`; names with a dot or a quote in `"..."`',
        sinks=(POSTGRES,),
    ),
    Option(
        name="index", read=_text, meaning="the index, data stream or alias", sinks=(ELASTICSEARCH,)
    ),
    Option(
        name="bootstrapServers",
        read=_text,
        meaning="`host:port`, or several, comma-separated",
        sinks=(KAFKA,),
    ),
    Option(name="topic", read=_text, meaning="the topic; or `topicColumn`", sinks=(KAFKA,)),
    Option(name="subject", read=_text, meaning="the subject; or `subjectColumn`", sinks=(NATS,)),
    *(
        Option(name=name, read=_text, default=default, meaning=meaning, sinks=sinks)
        for name, default, meaning, sinks in _BROKERS_COLUMNS
    ),
    Option(
        name="compression",
        read=_choice("none", "gzip", "snappy", "lz4", "zstd"),
        default="none",
        meaning="the compression of batches of records",
        sinks=(KAFKA,),
    ),
    Option(
        name="securityProtocol",
        read=_choice("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
        default="plaintext",
        meaning="TLS with `ssl`, a login with `sasl`",
        sinks=(KAFKA,),
    ),
    Option(
        name="saslMechanism",
        read=_choice("plain", "scram-sha-256", "scram-sha-512"),
        default="plain",
        meaning="the login mechanism for `user` and `password`",
        sinks=(KAFKA,),
    ),
    Option(
        name="caFile",
        read=_text,
        default="the system's",
        meaning="a file with the certificates to trust, on every machine",
        sinks=(KAFKA,),
    ),
    Option(
        name="path",
        read=_text,
        meaning="the file; each worker process writes its own, `name-HOST-PID.suffix`",
        sinks=(FILE,),
    ),
    Option(
        name="writeMode",
        read=_choice("append", "upsert", "ignore"),
        default="append",
        meaning="what happens to a row whose key exists: `append` refuses it "
        "(`elasticsearch` adds another document), `upsert` replaces the existing row, `ignore` "
        "keeps it (not for `elasticsearch`)",
        sinks=(POSTGRES, ELASTICSEARCH),
    ),
    Option(
        name="mergeKeys",
        read=_names,
        default="the primary key",
        meaning="the key columns for `upsert` and `ignore`; for `elasticsearch` the one id column",
        sinks=(POSTGRES, ELASTICSEARCH),
    ),
    Option(
        name="preparedStatements",
        read=_choice("auto", "true", "false"),
        default="auto",
        meaning="whether statements are prepared: `auto` tests for a pooler such as PgBouncer, and "
        "prepares none behind one",
        sinks=(POSTGRES,),
    ),
    Option(
        name="versionColumn",
        read=_text,
        meaning="with `upsert`: replace only rows with a lower version",
        sinks=(POSTGRES,),
    ),
    *WRITING,
    Option(
        name="maxRetries",
        read=_count(0),
        default="3",
        meaning="retries of a row after its first attempt; outages do not count",
    ),
    Option(
        name="retryBackoffMs",
        read=_count(1),
        default="100",
        meaning="the longest wait before the second attempt in ms; doubles up to 30 s",
    ),
    Option(
        name="timeoutMs",
        read=_count(1),
        default="60000",
        meaning="the timeout of one attempt in ms",
    ),
    Option(
        name="deadLetters",
        read=_text,
        default=RAISE,
        meaning="the destination of rows that fail for good: `raise` (the write fails), a file "
        "(a path with a `/`; each worker process writes its own), for `postgres` a table "
        "(`sluicegate dlq init` creates one), for `kafka` a topic, for `nats` a subject",
    ),
    Option(name="delivery", read=_delivery, default=AT_LEAST_ONCE, meaning="only `at_least_once`"),
)

_ADDED_BY_SPARK = frozenset({"checkpointlocation", "queryname"})
_HINTS = {
    "appid": "exactly once needs write_dataframe or foreach_batch, with delivery= and app_id=",
    "driver": "there is no driver; omit it",
    "includeheaders": "use headersColumn",
    "kafka.bootstrap.servers": "use bootstrapServers",
    "kafka.security.protocol": "use securityProtocol",
    "key": "use write_dataframe(df, sink, key=...), which brings the rows of a key together",
    "numpartitions": "use df.coalesce(n)",
    "querytimeout": "use timeoutMs",
    "rewritebatchedinserts": "rows are written by COPY; omit it",
    "table": "use dbtable",
    "truncate": "rows can only be added",
}


def read_options(given: Mapping[str, str], table: tuple[Option, ...], whose: str) -> dict[str, Any]:
    """Parse the given options; return the values by the names in `table`. `whose` names the format
    in errors.

    Raises `ConfigError` for unknown names and wrong values.
    """
    known = {option.name.lower(): option for option in table}
    lowered = {
        name.lower(): value for name, value in given.items() if name.lower() not in _ADDED_BY_SPARK
    }
    strange = [name for name in lowered if name not in known]
    if strange:
        raise bad(
            "option",
            strange[0] if len(strange) == 1 else strange,
            f"{whose} has no such option{_advice(strange, known)}",
        )
    return {
        known[name].name: known[name].read(known[name].name, value)
        for name, value in lowered.items()
    }


def check_sinks(found: Mapping[str, Any], kind: str) -> None:
    """Raise `ConfigError` for an option that has no meaning for this kind of sink."""
    for option in OPTIONS:
        if option.name in found and kind not in option.sinks:
            shown = "..." if option.is_secret else found[option.name]
            raise bad(
                option.name,
                shown,
                f"has no meaning for sink={kind!r}, only for {', '.join(option.sinks)}",
            )


def _advice(strange: list[str], known: Mapping[str, Option]) -> str:
    said: list[str] = []
    for name in strange:
        close = [known[match].name for match in get_close_matches(name, known, n=3)]
        if name in _HINTS:
            said.append(f"; {name}: {_HINTS[name]}")
        elif close:
            said.append(f"; {name}: did you mean {' or '.join(close)}?")
    return "".join(said) + ". Its options: " + ", ".join(option.name for option in known.values())


def options_as_markdown() -> str:
    """Return the table of options for the documentation."""
    lines = ["| option | default | |", "|---|---|---|"]
    for option in OPTIONS:
        only = "" if option.sinks == KINDS else f" ({', '.join(option.sinks)})"
        lines.append(f"| `{option.name}`{only} | {option.default} | {option.meaning} |")
    return "\n".join(lines)
