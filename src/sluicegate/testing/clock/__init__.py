"""The fake clock and its virtual event loop."""
