"""`sluicegate serve`: one program in several processes.

`commands` reads the arguments. `supervise` starts the processes, restarts them after a crash and
drains them. `member` is the program of each process. `gathered` answers probes for all of them.
"""
