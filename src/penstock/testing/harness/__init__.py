"""A consumer in a test: messages in, a handler, and what became of each message."""
