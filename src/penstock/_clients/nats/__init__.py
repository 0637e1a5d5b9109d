"""The client of NATS: its options, its connection, and its errors.

Importing it raises `MissingExtra`, an `ImportError`, without nats-py.
"""

import importlib.util

from ..._core.errors import MissingExtra

if importlib.util.find_spec("nats") is None:
    raise MissingExtra('pip install "penstock[nats]"')
