"""How many examples a property has: a few in `make test`, all in `make long`.

Each property is written once. `make long` takes the profile `long` and runs every test with the
marker `hypothesis`: those with `@given` have it by themselves; a test that runs a state machine is
given `@pytest.mark.hypothesis`. Without settings of its own, a property has as many as its profile.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

FEW, ALL = 40, 200

DEFAULT = "few"
"""The profile of `make test`."""
SLOWLY = [HealthCheck.too_slow]
"""A loaded machine is no fault of a property."""
settings.register_profile(DEFAULT, max_examples=FEW, deadline=None, suppress_health_check=SLOWLY)
settings.register_profile("long", max_examples=ALL, deadline=None, suppress_health_check=SLOWLY)


def how_many(few: int, *, long: int) -> int:
    """Return the number of examples under the current profile."""
    return long if settings().max_examples == ALL else few


def examples(few: int, *, long: int) -> settings:
    """Return settings with so many examples: a decorator, or the first argument of `settings`."""
    return settings(max_examples=how_many(few, long=long))
