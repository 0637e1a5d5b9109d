"""Shared parts of Kafka group members, independent of the client. Loads no client."""
