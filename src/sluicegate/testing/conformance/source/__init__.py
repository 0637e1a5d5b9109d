"""The conformance suite of sources, by subject; `sources.py` above combines it."""
