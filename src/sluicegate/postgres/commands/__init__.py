"""The commands `sluicegate pg`, `sluicegate queue` and `sluicegate stream`.

- `pg`, `queue` with `queue_arguments`, `stream`; `messages`: `stream delete` and `stream replay`.
- `output`: tables, JSON and progress.
"""
