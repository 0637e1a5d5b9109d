"""The schema of streams and queues in PostgreSQL.

- `migrations`: its SQL; `installation`, `rights`: installing it and granting rights.
- `check`, `contents`, `objects`: finding problems in it, in its contents, in its objects.
- `administration`: all of this for users; `opened`: the schema that an application finds.
"""
