"""A consumer in a test: messages in, a handler, and the result of each message."""
