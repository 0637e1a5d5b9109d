"""`sluicegate spool`: inspect, check, export and replay the items of a spool.

`commands` are run on a `view` of the folder: its owners, asked by socket, and files of no owner.
"""
