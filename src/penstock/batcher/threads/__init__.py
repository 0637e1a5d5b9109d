"""A batcher for programs with threads."""
