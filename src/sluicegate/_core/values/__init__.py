"""Clients of servers, for sinks, sources and the command line."""
