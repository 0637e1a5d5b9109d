"""A server for bulk requests, and a loop that sends them."""
