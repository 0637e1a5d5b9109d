"""The stores of dead letters: numbers, lists in pages, one letter in full, replays and removals.

1. A store has no index for the filters, so a page reads letters from the start, and counts at most
   `MOST` of them. Its cursor is the key of a letter.
2. The form of an action carries the time of its page as `until`: letters that arrive later are
   neither sent nor removed.
3. A replay is that of `sluicegate dlq replay`: one at a time, in the order of keys, and an
   interrupted one continues with the next.
"""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .._core.errors import ErrorClass, SluicegateError
from .._core.opening import opened
from .._core.text import text_of
from ..cli.console import UseError
from ..cli.dlq.output import details, summary
from ..cli.dlq.replay import LEFT, Replay
from ..cli.parser import when
from ..letters.letter import STATES, Selection
from ..letters.store import StoreError
from ..letters.text import without_secrets
from .door import Refused
from .site import Done, Page, Plan, Section, action, needed
from .stores import closed_store, command_of, kind_of, target_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.responses import Response

    from ..letters.letter import Letter
    from ..letters.store import Store
    from .door import Form
    from .stores import LetterStore

PER_PAGE = 50
MOST = 10_000
"""Maximum number of letters that are counted for a page, and that one action sends."""
_CHOICES = {
    "left": LEFT.states,
    "all": frozenset(STATES),
    **{each: frozenset({each}) for each in STATES},
}
_TEXTS = ("batcher", "error_class", "error_type", "code")


@asynccontextmanager
async def _opened(store: LetterStore) -> AsyncGenerator[Store]:
    """Open a store. Raises `Refused` with the text of its errors."""
    try:
        async with closed_store(store) as found:
            yield found
    except (StoreError, UseError, SluicegateError, OSError) as error:
        raise Refused(409, "Not possible", without_secrets(text_of(error))) from error


@dataclass(slots=True)
class Listing:
    """A page of letters, and the numbers of all selected ones."""

    after: str | None
    """Its cursor: the key of the last letter of the page before."""
    letters: list[Letter] = field(default_factory=list["Letter"])
    next: str | None = None
    """The cursor of the next page."""
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Numbers by class and type of the error."""
    states: Counter[str] = field(default_factory=Counter[str])
    doubtful: int = 0
    """Number of letters that may have been delivered."""
    unreadable: int = 0

    @property
    def total(self) -> int:
        """Number of selected letters, at most about `MOST`."""
        return self.states.total()

    @property
    def is_full(self) -> bool:
        """Whether further letters change nothing."""
        return self.next is not None and self.total >= MOST

    def add(self, letter: Letter) -> None:
        """Count a selected letter, and list it if it is of this page."""
        if self.after is not None:
            self.after = None if self.after == letter.key else self.after
        elif len(self.letters) < PER_PAGE:
            self.letters.append(letter)
        else:
            self.next = self.letters[-1].key
        if self.total < MOST:
            self.kinds[letter.error_class, letter.error_type] += 1
            self.states[letter.state] += 1
            self.doubtful += letter.may_be_delivered


async def _listed(store: Store, selection: Selection, after: str | None = None) -> Listing:
    found = Listing(after)
    async with aclosing(store.letters(selection)) as letters:
        async for letter in letters:
            if found.is_full:
                break
            found.add(letter)
    return replace(found, unreadable=store.unreadable.count)


# -- selections ------------------------------------------------------------------------------------


def _selection(form: Form) -> Selection:
    """Return the selection of a form. Raises `Refused`."""
    state = form.get("state") or "left"
    if state not in _CHOICES:
        raise Refused(400, "No such state", f"state must be one of {', '.join(_CHOICES)}.")
    try:
        times: dict[str, Any] = {
            name: when(form[name]) for name in ("since", "until") if form.get(name)
        }
    except argparse.ArgumentTypeError as error:
        raise Refused(400, "No such time", f"{error}.") from None
    letter, key = form.get("letter"), form.get("key")
    given: dict[str, Any] = {name: form.get(name) or None for name in _TEXTS}
    return Selection(
        states=_CHOICES[state],
        only=frozenset({letter}) if letter else None,
        keys=(key,) if key else (),
        **given,
        **times,
    )


def _fields(form: Form, selection: Selection) -> dict[str, str]:
    """Return the fields of an action, which exclude letters that arrive from now on."""
    now = datetime.now(UTC)
    times = {"until": min(selection.until or now, now)}
    if selection.since is not None:
        times["since"] = selection.since
    names = ("store", "state", "letter", "key", *_TEXTS)
    return {
        **{name: form[name] for name in names if form.get(name)},
        **{name: time.isoformat() for name, time in times.items()},
    }


def _described(form: Form) -> str:
    """Describe the filters of a form."""
    told = [
        f"{name.replace('_', ' ')} {form[name]}"
        for name in ("letter", "key", *_TEXTS)
        if form.get(name)
    ]
    told += [f"{name} {form[name]}" for name in ("since", "until") if form.get(name)]
    return f" with {', '.join(told)}" if told else ""


def _find(page: Page, form: Form) -> LetterStore:
    stores = page.console.letters
    name = needed(form, "store")
    if name not in stores:
        raise Refused(404, "No such store", f"The console has no store of dead letters {name!r}.")
    return stores[name]


# -- pages -----------------------------------------------------------------------------------------


async def _stores(page: Page) -> Response:
    rows: list[tuple[LetterStore, str, Listing | None, str]] = []
    for each in page.console.letters.values():
        try:
            async with _opened(each) as store:
                rows.append((each, kind_of(each), await _listed(store, LEFT), ""))
        except Refused as error:  # the others are shown nevertheless
            rows.append((each, kind_of(each), None, error.text))
    return page.show("stores.html", title="Dead letters", live=True, rows=rows, most=MOST)


async def _letters(page: Page) -> Response:
    form = page.request.query_params
    store, selection = _find(page, form), _selection(form)
    async with _opened(store) as letters:
        found = await _listed(letters, selection, page.get("after"))
    return page.show(
        "letters.html",
        title=f"Dead letters of {store.name}",
        store=store,
        found=found,
        most=MOST,
        states=_CHOICES,
        classes=[each.value for each in ErrorClass],
        filters={name: form.get(name, "") for name in ("state", "key", *_TEXTS, "since", "until")},
        command=command_of(store),
    )


async def _letter(page: Page) -> Response:
    store, key = _find(page, page.request.query_params), page.require("letter")
    async with _opened(store) as letters:
        chosen = Selection(only=frozenset({key}))
        found = [each async for each in letters.letters(chosen)]
    if not found:
        raise Refused(404, "No such letter", f"The store {store.name} has no letter {key!r}.")
    facts = found[0].as_dict()
    return page.show(
        "letter.html",
        title=f"Letter {key}",
        store=store,
        letter=found[0],
        facts=facts,
        item=facts.pop("item"),
        command=command_of(store, "--letter", key),
    )


# -- actions ---------------------------------------------------------------------------------------


async def _count(page: Page, form: Form) -> tuple[LetterStore, Selection, Listing]:
    store, selection = _find(page, form), _selection(form)
    async with _opened(store) as letters:
        return store, selection, await _listed(letters, selection)


def _number(count: int) -> str:
    return f"{count:,}{' or more' if count >= MOST else ''} dead letters"


def _back(page: Page, form: Form) -> str:
    return page.url("letters", store=form.get("store"))


async def _plan_replay(page: Page, form: Form) -> Plan:
    store, selection, found = await _count(page, form)
    count = sum(found.states[each] for each in LEFT.states)
    notes = [f"At most {MOST:,} are sent at once."] * (count >= MOST)
    if found.doubtful:
        notes.append(f"{found.doubtful:,} of them may have been delivered already.")
    return Plan(
        question=f"Send {_number(count)} of {store.name}{_described(form)} again?",
        count=count if target_of(store) else 0,
        fields=_fields(form, selection),
        back=_back(page, form),
        notes=[*notes, "Letters that fail again stay in the store."],
    )


async def _replay(page: Page, form: Form) -> Done:
    store = _find(page, form)
    target = target_of(store)
    if target is None:
        raise Refused(409, "No target", f"The store {store.name} has no sink to send letters to.")
    sink, rules = target
    async with _opened(store) as letters:
        replay = Replay(letters, sink, rules)
        await letters.hold()
        async with opened(sink):
            await replay.run(_selection(form), MOST)
    return Done(
        text=f"{store.name}: {summary(replay)}.",
        count=replay.endings.total() + replay.order.held_back,
        back=_back(page, form),
        lines=[*details(replay)],
    )


async def _plan_purge(page: Page, form: Form) -> Plan:
    store, selection, found = await _count(page, form)
    states = ", ".join(f"{found.states[each]:,} {each}" for each in STATES if found.states[each])
    return Plan(
        question=f"Remove {_number(found.total)} ({states or 'none'}) of {store.name}{_described(form)} for good?",
        count=found.total,
        fields=_fields(form, selection),
        back=_back(page, form),
        notes=["Those that were not replayed exist nowhere else."],
    )


async def _purge(page: Page, form: Form) -> Done:
    store = _find(page, form)
    async with _opened(store) as letters:
        count = await letters.purge(_selection(form))
    return Done(
        text=f"{count:,} dead letters of {store.name} were removed.",
        count=count,
        back=_back(page, form),
    )


LETTERS = Section(
    title="Dead letters",
    pages={"stores": _stores, "letters": _letters, "letter": _letter},
    is_shown=lambda console: bool(console.letters),
    actions={
        "replay-letters": action("Send again", _plan_replay, _replay),
        "purge-letters": action("Remove", _plan_purge, _purge, is_destructive=True),
    },
)
