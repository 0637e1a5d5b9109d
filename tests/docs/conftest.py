"""The pages have the databases of the examples."""

from tests.examples.conftest import database

__all__ = ["database"]
