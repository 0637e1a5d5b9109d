"""The pages use the databases of the examples."""

from tests.examples.conftest import database

__all__ = ["database"]
