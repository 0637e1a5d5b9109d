"""Every listed mistake causes its message, which says what to write."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.mistakes.cases import TOPICS
from tests.mistakes.mistake import FILE, Told
from tests.mistakes.page import MESSAGES, PAGE, messages, page, told_by_all

if TYPE_CHECKING:
    from tests.mistakes.mistake import Mistake

    from sluicegate.testing import EmbeddedPostgres

MISTAKES = [each for mistakes in TOPICS.values() for each in mistakes]


@pytest.fixture(scope="module")
def answers(embedded_postgres: EmbeddedPostgres) -> dict[str, Told]:
    """The messages of each program."""
    return told_by_all(embedded_postgres.dsn)


def test_there_are_at_least_fifty_of_different_titles() -> None:
    assert len({mistake.title for mistake in MISTAKES}) == len(MISTAKES) >= 50


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.title)
def test_a_mistake_has_one_answer_of_its_kind(mistake: Mistake, answers: dict[str, Told]) -> None:
    """batcher/B46: a single error or warning, and no warning about an abandoned object. The log may
    contain lines about the same failure.
    """
    told = answers[mistake.title]
    others = {"error": told.warnings, "warning": told.errors + told.logged, "log": told.errors}
    assert len(told.of(mistake.kind)) == 1, told
    assert not others[mistake.kind], told


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.title)
def test_an_answer_shows_no_secret_and_no_address(
    mistake: Mistake, answers: dict[str, Told]
) -> None:
    text = "".join(answers[mistake.title].of(mistake.kind))
    assert "secret" not in text
    assert re.search(r"0x[0-9a-f]", text) is None
    assert "/sluicegate/" not in text


def test_a_warning_names_the_line_of_the_mistake(answers: dict[str, Told]) -> None:
    files = {file for told in answers.values() for _, file in told.warnings}
    assert files == {FILE}


def test_no_answer_blames_the_library(answers: dict[str, Told]) -> None:
    """A mistake of the user is not told as a fault of the library, nor as an error inside it: a bug
    that a message suspects is at a line of the program.
    """
    for title, told in answers.items():
        text = "".join([*told.errors, *told.logged])
        assert not re.search(rf"a bug: \w+ at (?!{FILE})", text), title
        assert not text.startswith(("KeyError", "AttributeError", "IndexError", "NameError")), title


def test_the_page_and_the_messages_are_made_from_these(answers: dict[str, Told]) -> None:
    """Regenerate them with `PYTHONPATH=src python -m tests.mistakes.page`."""
    assert PAGE.read_text(encoding="utf-8") == page(answers)
    assert MESSAGES.read_text(encoding="utf-8") == messages(answers)
    assert len(page(answers).split()) <= 1600
