"""Shared keyword options: their signature, their defaults, and the names that are refused.

White box: the decorator of keyword options.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack

import pytest

from sluicegate import ConfigError
from sluicegate._core.keywords import takes
from sluicegate.http import ElasticsearchSink, HttpSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


class Shared(TypedDict, Generic[T], total=False):
    size: int
    name: str | None
    key: Callable[[T], object] | None


def made(
    *, name: str | None = None, size: int = 3, key: Callable[[Any], object] | None = None
) -> tuple[object, ...]:
    return size, name, key


class Plain(Generic[T]):
    @takes(Shared, made)
    def __init__(
        self, items: Sequence[T], *, own: bool = True, **options: Unpack[Shared[T]]
    ) -> None:
        """Its docstring."""
        self.items = items
        self.own = own
        self.made = made(**options)


class Ordered:
    @takes(Shared, made, before={"own": ("name",)})
    def __init__(self, *, own: bool = True, **options: Unpack[Shared[str]]) -> None:
        self.own = own
        self.options = dict(options)


def test_the_signature_shows_each_option_with_its_default() -> None:
    assert str(inspect.signature(Plain)) == (
        "(items: 'Sequence[T]', *, own: 'bool' = True, size: 'int' = 3, "
        "name: 'str | None' = None, key: 'Callable[[T], object] | None' = None) -> 'None'"
    )
    assert Plain.__init__.__doc__ == "Its docstring."


def test_options_stand_where_they_are_placed() -> None:
    assert str(inspect.signature(Ordered)) == (
        "(*, name: 'str | None' = None, own: 'bool' = True, size: 'int' = 3, "
        "key: 'Callable[[T], object] | None' = None) -> 'None'"
    )


def test_options_reach_the_function_and_absent_ones_have_their_default() -> None:
    plain = Plain(["a"], name="n", key=str.upper)
    assert (plain.items, plain.own) == (["a"], True)
    assert plain.made == (3, "n", str.upper)


def test_an_unknown_keyword_is_refused_by_name() -> None:
    takes = "Plain has no such argument; it takes items, own, size, name, key"
    with pytest.raises(ConfigError, match=rf"^sise=\.\.\.: {takes}$"):
        Plain([], sise=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_an_option_without_a_home_is_an_error_at_decoration() -> None:
    with pytest.raises(KeyError, match="key"):
        takes(Shared, lambda *, size=1, name=None: (size, name))


@pytest.mark.parametrize("sink", [HttpSink, ElasticsearchSink])
def test_an_argument_of_the_access_is_named_as_such(sink: Callable[..., object]) -> None:
    with pytest.raises(ConfigError, match=r"^auth=\.\.\.: is an argument of HttpAccess"):
        sink("http://localhost", auth="secret")
