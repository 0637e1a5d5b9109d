"""From the records of a source to the positions that it stores.

`source_tasks` fetches and commits. `claims` is the host of the source; `claim` is one assignment of
a partition. Its `tracker` knows the settled records and the position; `offset_map` stores the
records settled beyond it as text. `draining` ends the activity of claims that are taken away.
"""
