"""Event loops, threads, forked processes, the interpreter's exit."""
