"""Makes the databases of the examples available to the pages."""

from tests.examples.conftest import database

__all__ = ["database"]
