"""The client of Apache Kafka: its options, its errors, and internals of aiokafka.

Importing it raises `MissingExtra`, an `ImportError`, without aiokafka.
"""

import importlib.util

from ..._core.errors import MissingExtra

if importlib.util.find_spec("aiokafka") is None:
    raise MissingExtra('pip install "penstock[kafka]"')
