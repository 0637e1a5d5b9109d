"""The commands `sluicegate pg`, `queue`, `stream` and `parked`.

- `pg`, `queue` with `queue_arguments`, `stream`, `parked`; `messages`: `stream delete`.
- `output`: tables, JSON and progress.
"""
