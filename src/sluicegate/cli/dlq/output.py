"""The output of `sluicegate dlq`: letters on standard output, messages on standard error.

A mistyped name must not look like an empty store: an empty selection is
printed with the number of letters.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import aclosing
from datetime import UTC
from typing import TYPE_CHECKING

from ..._core.errors import RefusedError
from ..._core.logs import for_log
from ..._core.text import text_of
from ...letters.items import REPR
from ...letters.letter import STATES, Selection
from ...letters.text import as_json, printable, without_secrets
from ..console import say
from .replay import REPR_ONLY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...letters.letter import Letter
    from ...letters.store import Store
    from .replay import Replay, ReplayOrder

_WIDTH = 60
_MOST_STOPS = 10


def line_of(letter: Letter) -> str:
    """Format a letter as one printable line."""
    when = letter.last_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    message = printable(without_secrets(letter.message))
    short = message if len(message) <= _WIDTH else message[: _WIDTH - 3] + "..."
    key = () if letter.item_key is None else (f"key={printable(letter.item_key)}",)
    kinds = (printable(letter.error_class), printable(letter.error_type))
    facts = {"cause": letter.cause_type, "code": letter.code}
    told = [f"{name}={printable(text)}" for name, text in facts.items() if text]
    form = () if letter.replayable else (f"item={printable(letter.item_form)}",)
    begin = (printable(letter.key), when, f"{letter.attempts:3}", letter.state)
    return "  ".join((*begin, *kinds, *told, *form, *key, short))


def json_of(letter: Letter) -> str:
    """Format a letter as one line of JSON."""
    return as_json(letter.as_dict(), encoding=sys.stdout.encoding)


def stop_reason(error: BaseException) -> str:
    """Explain why a replay has stopped early, and how to continue."""
    if isinstance(error, RefusedError):
        return (
            f"stopped, the destination refuses everything: {text_of(error)}; then "
            "run the same command again"
        )
    return (
        f"stopped, the destination accepts nothing now: {for_log(error)}; run the same "
        "command again to continue"
    )


def say_unreadable(store: Store) -> bool:
    """Print the places of unreadable records; return whether there are any."""
    found = store.unreadable
    if not found.count:
        return False
    for place in found.first:
        say(place)
    if found.count > len(found.first):
        say(f"and {found.count - len(found.first)} more")
    say(f"{found.count} records are not dead letters and stay unchanged")
    return True


def summary(replay: Replay) -> str:
    """Return the counted outcomes of a replay."""
    found = [
        f"{number} {name.replace('_', '-')}" for name, number in sorted(replay.endings.items())
    ]
    if replay.order.held_back:
        found.append(f"{replay.order.held_back} held back")
    return f"replayed: {', '.join(found) or 'nothing'}"


def details(replay: Replay) -> Iterator[str]:
    """Explain line by line which letters remain, and why."""
    number = replay.endings[REPR_ONLY]
    if number:
        yield (
            f"not sent: {number} whose item is partly known only by its repr; `sluicegate dlq list` "
            f"shows them as item={REPR}. Repair them by hand, then purge them"
        )
    for reason, number in replay.refusals.most_common():
        yield f"{number} refused: {reason}"
    if replay.stopped_by is not None:
        yield stop_reason(replay.stopped_by)
        return
    if not replay.order.relevant_stops:  # they give the reasons
        for reason, number in replay.reasons.most_common():
            yield f"{number} rejected: {reason}"
    yield from stops_of(replay.order)


def stops_of(order: ReplayOrder) -> Iterator[str]:
    """Tell which keys have stopped, and where."""
    stops = order.relevant_stops
    for lane, stop in stops[:_MOST_STOPS]:
        behind = f", {stop.behind} held back behind it" if stop.behind else ""
        yield f"key {lane} stops at letter {stop.letter}{behind}: {stop.why}"
    if len(stops) > _MOST_STOPS:
        yield f"and {len(stops) - _MOST_STOPS} more keys"


async def say_why_none(store: Store) -> None:
    """Print how many letters there are, of which none is selected."""
    states: Counter[str] = Counter()
    async with aclosing(store.letters(Selection())) as letters:
        async for letter in letters:
            states[letter.state] += 1
    counts = ", ".join(f"{states[each]} {each}" for each in STATES if states[each])
    say(
        f"none of {states.total()} dead letters is selected: {counts}"
        if states
        else "there are no dead letters"
    )
