"""The schema of streams and queues in PostgreSQL.

- `migrations`: its SQL; `installation`, `rights`: what installs it and grants rights.
- `check`, `contents`, `objects`: what finds problems in it, in its contents, in its objects.
- `administration`: all of this for users; `opened`: the schema that an application finds.
"""
