"""Messages that cannot be handled.

`poison` carries out the strategy. `dead_letters` writes letters, and stops a consumer that would
write too many; `parking` writes and replays the records of parked keys. `departures` are the tasks
and ways in which such messages leave.
"""
