"""The page matches the code: every key with its type and whether it is required; every kind; every
exit code. White box: the choices of a write, and the kinds of sinks.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from inspect import signature
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from sluicegate.spark import Pipeline
from sluicegate.spark.pipeline import (
    Destination,
    Incremental,
    Source,
    SparkSettings,
    Step,
    Stream,
    Watermark,
    Write,
)
from sluicegate.spark.pipeline.sinks import KINDS, LAYERS

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "run-a-pipeline.md").read_text(
    encoding="utf-8"
)
SECTIONS: dict[str, type[Any]] = {
    "The pipeline": Pipeline,
    "`[spark]`": SparkSettings,
    "`[sources.NAME]`": Source,
    "`[steps.NAME]`": Step,
    "`incremental`": Incremental,
    "`watermark`": Watermark,
    "`[sinks.NAME]`": Destination,
    "`[write]`": Write,
    "`[stream]`": Stream,
}
ELSEWHERE = {"df", "sink", "progress"}


def rows(section: str) -> list[list[str]]:
    text = re.split(
        r"^##+ .*$", PAGE.split(f"### {section}\n", 1)[1], maxsplit=1, flags=re.MULTILINE
    )[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_table_of_the_page_has_every_key_and_no_other(section: str) -> None:
    kind = SECTIONS[section]
    known = [
        each
        for each in fields(kind)
        if not each.name.startswith("_") and not each.metadata.get("rest")
    ]
    needed = {
        each.name for each in known if each.default is MISSING and each.default_factory is MISSING
    }
    shown = {
        match[2]: bool(match[1])
        for row in rows(section)
        if (match := re.fullmatch(r"(\*\*)?`(\w+)`(?:\*\*)?", row[0]))
    }
    keys = {
        name: must
        for name, must in shown.items()
        if kind is not Destination or name in {"kind", "stack"}
    }
    assert keys == {each.name: each.name in needed for each in known}


@pytest.mark.parametrize("section", SECTIONS)
def test_the_choices_of_a_key_are_all_shown(section: str) -> None:
    shown = {row[0].strip("*`"): row[1] for row in rows(section)}
    for name, hint in get_type_hints(SECTIONS[section]).items():
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        assert [choice for choice in choices if f'`"{choice}"`' not in shown[name]] == []


def test_a_pipeline_can_say_whatever_a_write_takes() -> None:
    """Its choices are those of `write_dataframe`, and none is missing."""
    pytest.importorskip("pyspark")
    from sluicegate.spark import write_dataframe
    from sluicegate.spark.levels import DeliveryLevel, WriteMode
    from sluicegate.spark.task.key_failure import OnKeyFailure
    from sluicegate.spark.write import DeadLetters

    own = get_type_hints(Write)
    assert set(signature(write_dataframe).parameters) - ELSEWHERE <= set(own)
    choices = {
        "dead_letters": DeadLetters,
        "delivery": DeliveryLevel,
        "mode": WriteMode,
        "on_key_failure": OnKeyFailure,
    }
    assert {
        name: set(get_args(own[name])) - set(get_args(hint)) for name, hint in choices.items()
    } == {name: set() for name in choices}


def test_every_kind_is_shown() -> None:
    shown = [row[0].strip("`") for row in rows("`[sinks.NAME]`")]
    assert sorted(KINDS | set(LAYERS)) == sorted(
        kind for kind in shown if kind in KINDS | set(LAYERS)
    )
