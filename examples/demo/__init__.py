"""A year of flights through a batcher; `make demo` runs it."""
