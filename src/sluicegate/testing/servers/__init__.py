"""Embedded servers.

- `program`: a server's process and folder; `java`: the same for Java; `guard`: ends both with the
  test process.
- `require`: skips tests without a server.
"""
