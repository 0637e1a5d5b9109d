"""What runs: event loops, threads, processes that fork, the interpreter's exit."""
