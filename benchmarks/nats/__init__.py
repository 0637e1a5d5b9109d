"""A stream of NATS JetStream, and ways to consume it."""
